# %% words
import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
sentence = ["time", "flies", "like", "an", "arrow"]
vocabulary = {word: row for row, word in enumerate(sorted(sentence))}
embedding = jnp.asarray(rng.normal(size=(len(vocabulary), 512)), jnp.float32)
tokens = jnp.array([vocabulary[word] for word in sentence])
vectors = embedding[tokens]
print(tokens, vectors.shape)

# %% positions
steps = jnp.arange(5)[:, None] / 10000 ** (jnp.arange(0, 512, 2) / 512)  # (5, 256)
positions = jnp.zeros((5, 512))
positions = positions.at[:, 0::2].set(jnp.sin(steps)).at[:, 1::2].set(jnp.cos(steps))

# %% broadcast
wrong = vectors + positions[:, None, :]  # (5, 512) + (5, 1, 512), as in the script
print(wrong.shape, "->", wrong.reshape(1, -1, 512).shape)

# %% added
x = vectors + positions
print(x.shape)

# %% projections
w_q, w_k, w_v, w_o = jnp.asarray(rng.normal(size=(4, 512, 512)), jnp.float32) / 512**0.5


def split(x):  # (L, 512) -> (8, L, 64)
    return x.reshape(len(x), 8, 64).swapaxes(0, 1)


q, k, v = split(x @ w_q.T), split(x @ w_k.T), split(x @ w_v.T)
print(q.shape, k.shape, v.shape)

# %% attend
scores = q @ k.swapaxes(1, 2) / 8  # the root of 64
weights = jax.nn.softmax(scores, axis=-1)
heads = weights @ v  # (8, 5, 64)
output = heads.swapaxes(0, 1).reshape(5, 512) @ w_o.T
print(weights.shape, heads.shape, output.shape)
