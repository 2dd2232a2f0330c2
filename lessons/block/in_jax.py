# %% words
import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
x = jnp.asarray(rng.normal(size=(5, 512)), jnp.float32)  # five words with their positions

# %% projections
w_q, w_k, w_v, w_o = jnp.asarray(rng.normal(size=(4, 512, 512)), jnp.float32) / 512**0.5


def split(x):  # (L, 512) -> (8, L, 64)
    return x.reshape(len(x), 8, 64).swapaxes(0, 1)


# %% attend
def attend(x, y):  # queries from x, keys and values from y
    q, k, v = split(x @ w_q.T), split(y @ w_k.T), split(y @ w_v.T)
    weights = jax.nn.softmax(q @ k.swapaxes(1, 2) / 8, axis=-1)  # 8 is the root of 64
    heads = weights @ v  # (8, L of x, 64)
    return weights, heads, heads.swapaxes(0, 1).reshape(len(x), 512) @ w_o.T


weights, heads, output = attend(x, x)
print(weights.shape, heads.shape, output.shape)


# %% around


def normed(y):  # each vector to mean 0 and deviation 1
    return jax.nn.standardize(y, axis=-1, epsilon=1e-5)


first = normed(x + output)  # the words themselves go on beside what attention found
print(f"deviation: x {x.std():.2f}, x + attention {(x + output).std():.2f}, normed {first.std():.2f}")

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

# %% cross
read = jnp.asarray(rng.normal(size=(7, 512)), jnp.float32)  # seven words, as an encoder gives them
cross_weights, _, cross = attend(first, read)
print(cross_weights.shape, cross.shape)
