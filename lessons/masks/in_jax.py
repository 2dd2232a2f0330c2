# %% masks
import jax
import jax.numpy as jnp
import numpy as np

x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)), jnp.float32)  # five words
x = x.at[4].multiply(10)  # the last of them is long: most scores with it are large
causal = jnp.tri(5, dtype=bool)  # query i may attend to keys 0 to i
lengths = jnp.broadcast_to(jnp.arange(5) < 3, (5, 5))  # only the first three keys are words, the others padding
print(lengths.astype(int))


# %% attend
def masked_softmax(scores, allowed):
    return jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1)


scores = x @ x.T / 4**0.5
everything = masked_softmax(scores, jnp.ones((5, 5), bool))
causal_weights = masked_softmax(scores, causal)
length_weights = masked_softmax(scores, lengths)
causal_output, length_output = causal_weights @ x, length_weights @ x
print(f"largest score: {scores.max():.1f} its weight behind the mask: {length_weights[:, 4].max()}")

# %% batch
valid_lens = jnp.array([3, 5])  # of two items
allowed_keys = jnp.arange(5) < valid_lens[:, None, None, None]  # (2, 1, 1, 5)
many_scores = jnp.stack([scores, scores])[:, None]  # (2, 1, 5, 5): two items, one head, five queries and keys
many_weights = masked_softmax(many_scores, allowed_keys)
print(allowed_keys.shape, many_weights.shape, f"padding of the first item: {many_weights[0, ..., 3:].max()}")

# %% empty
queries = jnp.array([[1.0], [1000.0]])
keys = jnp.array([[1.0], [2.0], [3.0]])
allowed = jnp.array([[True, True, False], [False, False, False]])  # the second query may look at nothing
print(masked_softmax(queries @ keys.T, allowed).round(4))

# %% guarded
has_key = allowed.any(axis=-1, keepdims=True)
guarded = jnp.where(allowed, masked_softmax(queries @ keys.T, allowed | ~has_key), 0)
print(guarded.round(4))

# %% broken
nan_score = jnp.array([[jnp.nan, 2.0, 3.0]])  # of the first query, which may not look at the third key
found = masked_softmax(nan_score, allowed[:1])
print("by row:", jnp.where(has_key[:1], found, 0))
print("by key:", jnp.where(allowed[:1], found, 0))

# %% padding
values = jnp.array([[10.0], [20.0], [jnp.nan]])  # nobody may look at the third, which is padding
print(guarded @ values)
output = guarded @ jnp.where(allowed.any(axis=0)[:, None], values, 0)
print(output.round(4))
