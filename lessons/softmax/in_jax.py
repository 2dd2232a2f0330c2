# %% textbook
import jax
import jax.numpy as jnp


def textbook_softmax(scores):
    powers = jnp.exp(scores - scores.max())  # the maximum of the whole matrix
    return powers / powers.sum(axis=-1, keepdims=True)


queries = jnp.array([[1.0], [1000.0]])
keys = jnp.array([[1.0], [2.0], [3.0]])
scores = queries @ keys.T  # a row of small scores beside a row of large ones
print(scores)
print(textbook_softmax(scores).round(4))


# %% rows
def softmax(scores):
    return jax.nn.softmax(scores, axis=-1)  # of each row its own


weights = softmax(scores)
print(weights.round(4))

# %% empty
allowed = jnp.array([[True, True, False], [False, False, False]])  # the second query may look at nothing
masked = jnp.where(allowed, scores, -jnp.inf)
print(softmax(masked).round(4))

# %% guarded
has_key = allowed.any(axis=-1, keepdims=True)
guarded = jnp.where(allowed, softmax(jnp.where(has_key, masked, 0)), 0)
print(guarded.round(4))

# %% padding
values = jnp.array([[10.0], [20.0], [jnp.nan]])  # nobody may look at the third, which is padding
print(guarded @ values)
output = guarded @ jnp.where(allowed.any(axis=0)[:, None], values, 0)
print(output.round(4))
