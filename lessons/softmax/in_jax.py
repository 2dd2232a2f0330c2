# %% shares
import jax
import jax.numpy as jnp


def unsafe_softmax(scores):
    powers = jnp.exp(scores)
    return powers / powers.sum(axis=-1, keepdims=True)


row = jnp.array([[2.0, 1.0, -1.0]])
print("divided by their sum:", row / row.sum())
print("softmax:             ", unsafe_softmax(row).round(3))
print("all scores + 10:     ", unsafe_softmax(row + 10).round(3))

# %% factors
factors = jnp.linspace(0, 4, 9)[:, None]
offered = jnp.array([[0.0], [1.0], [2.0], [2.5]])  # four scores
shares = unsafe_softmax(factors @ offered.T)  # (9, 4)
mean = shares @ offered
for at in (0, 2, 8):
    print(f"scores times {factors[at, 0]:.0f}:", shares[at].round(3))


# %% textbook
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
