# %% words
import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(5, 512)).astype("float32")  # five words with their positions

# %% projections
w_q, w_k, w_v, w_o = rng.normal(size=(4, 512, 512)).astype("float32") / np.float32(512) ** 0.5


def split(x):  # (L, 512) -> (8, L, 64)
    return x.reshape(len(x), 8, 64).swapaxes(0, 1)


# %% attend
def attend(x, y):  # queries from x, keys and values from y
    q, k, v = split(x @ w_q.T), split(y @ w_k.T), split(y @ w_v.T)
    scores = q @ k.swapaxes(1, 2) / np.float32(8)  # the root of 64
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)
    heads = weights @ v  # (8, L of x, 64)
    return weights, heads, heads.swapaxes(0, 1).reshape(len(x), 512) @ w_o.T


weights, heads, output = attend(x, x)
print(weights.shape, heads.shape, output.shape)


# %% around


def normed(y):  # each vector to mean 0 and deviation 1
    return (y - y.mean(axis=-1, keepdims=True)) / np.sqrt(y.var(axis=-1, keepdims=True) + 1e-5)


first = normed(x + output)  # the words themselves go on beside what attention found
print(f"deviation: x {x.std():.2f}, x + attention {(x + output).std():.2f}, normed {first.std():.2f}")

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

# %% cross
read = rng.normal(size=(7, 512)).astype("float32")  # seven words, as an encoder gives them
cross_weights, _, cross = attend(first, read)
print(cross_weights.shape, cross.shape)
