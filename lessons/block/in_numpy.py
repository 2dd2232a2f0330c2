# %% words
import numpy as np

rng = np.random.default_rng(0)
vectors = rng.normal(size=(5, 512)).astype("float32")  # five words
steps = np.arange(5)[:, None] / 10000 ** (np.arange(0, 512, 2) / 512)  # (5, 256)
positions = np.zeros((5, 512), "float32")
positions[:, 0::2] = np.sin(steps)
positions[:, 1::2] = np.cos(steps)
x = vectors + positions
print(x.shape)

# %% projections
w_q, w_k, w_v, w_o = rng.normal(size=(4, 512, 512)).astype("float32") / np.float32(512) ** 0.5


def split(x):  # (L, 512) -> (8, L, 64)
    return x.reshape(len(x), 8, 64).swapaxes(0, 1)


q, k, v = split(x @ w_q.T), split(x @ w_k.T), split(x @ w_v.T)
print(q.shape, k.shape, v.shape)

# %% attend
scores = q @ k.swapaxes(1, 2) / np.float32(8)  # the root of 64
powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
weights = powers / powers.sum(axis=-1, keepdims=True)
heads = weights @ v  # (8, 5, 64)
output = heads.swapaxes(0, 1).reshape(5, 512) @ w_o.T
print(weights.shape, heads.shape, output.shape)


# %% around


def normed(y):  # each vector to mean 0 and deviation 1
    return (y - y.mean(axis=-1, keepdims=True)) / np.sqrt(y.var(axis=-1, keepdims=True) + 1e-5)


first = normed(x + output)  # the words themselves go on beside what attention found
print(f"deviation of x {x.std():.2f}, of x + attention {(x + output).std():.2f}")
print(f"normed {first.std():.2f}")

# %% feed_forward
w_1 = rng.normal(size=(2048, 512)).astype("float32") / np.float32(512) ** 0.5
w_2 = rng.normal(size=(512, 2048)).astype("float32") / np.float32(2048) ** 0.5
hidden = np.maximum(first @ w_1.T, 0)  # (5, 2048), each position by itself
result = normed(first + hidden @ w_2.T)
print(hidden.shape, "->", result.shape)

# %% alone
moved = first[[4, 2, 0, 3, 1]]  # the same vectors in another order
again = normed(moved + np.maximum(moved @ w_1.T, 0) @ w_2.T)
print("each position by itself:", np.allclose(again, result[[4, 2, 0, 3, 1]], atol=1e-4))
