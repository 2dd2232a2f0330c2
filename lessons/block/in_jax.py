# %% words
import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
vectors = jnp.asarray(rng.normal(size=(5, 512)), jnp.float32)  # five words
steps = jnp.arange(5)[:, None] / 10000 ** (jnp.arange(0, 512, 2) / 512)  # (5, 256)
positions = jnp.zeros((5, 512))
positions = positions.at[:, 0::2].set(jnp.sin(steps)).at[:, 1::2].set(jnp.cos(steps))
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


# %% around


def normed(y):  # each vector to mean 0 and deviation 1
    return jax.nn.standardize(y, axis=-1, epsilon=1e-5)


first = normed(x + output)  # the words themselves go on beside what attention found
print(f"deviation of x {x.std():.2f}, of x + attention {(x + output).std():.2f}")
print(f"normed {first.std():.2f}")

# %% feed_forward
w_1 = jnp.asarray(rng.normal(size=(2048, 512)), jnp.float32) / 512**0.5
w_2 = jnp.asarray(rng.normal(size=(512, 2048)), jnp.float32) / 2048**0.5
hidden = jax.nn.relu(first @ w_1.T)  # (5, 2048), each position by itself
result = normed(first + hidden @ w_2.T)
print(hidden.shape, "->", result.shape)

# %% alone
order = jnp.array([4, 2, 0, 3, 1])
again = normed(first[order] + jax.nn.relu(first[order] @ w_1.T) @ w_2.T)  # the same vectors in another order
print("each position by itself:", jnp.allclose(again, result[order], atol=1e-4))
