# %% vectors
import jax
import jax.numpy as jnp

angles = jnp.radians(36 * jnp.arange(10))
vectors = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)  # (10, 2)
query = jnp.array([[jnp.cos(jnp.pi / 4), jnp.sin(jnp.pi / 4)]])  # (1, 2), at 45 degrees


# %% attend
def attend(queries, keys, values):
    scores = queries @ keys.T  # (Lq, Lk)
    weights = jax.nn.softmax(scores, axis=-1)
    return weights, weights @ values


weights, output = attend(query, vectors, vectors)
print(weights[0].round(3))
print(output[0])

# %% long
longer = vectors.at[3].multiply(5)  # the one at 108 degrees
long_weights, long_output = attend(query, longer, longer)
print(long_weights[0].round(3))
print(long_output[0].round(4))

# %% several
directions = jnp.radians(jnp.array([45, 150, 270]))
queries = jnp.stack([jnp.cos(directions), jnp.sin(directions)], axis=1)  # (3, 2)
all_weights, outputs = attend(queries, vectors, vectors)
print(outputs.shape, all_weights.shape, all_weights.sum(axis=-1).round(5))

# %% additive
import numpy as np

rng = np.random.default_rng(0)
w_q, w_k, vector = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((8, 2), (8, 2), 8))
hidden = jnp.tanh((query @ w_q.T)[:, None] + (longer @ w_k.T)[None])  # (1, 10, 8), a small network for each pair
additive_scores = hidden @ vector  # (1, 10)
additive_weights = jax.nn.softmax(additive_scores, axis=-1)
print(additive_weights[0].round(3))
