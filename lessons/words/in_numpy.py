# %% words
import numpy as np

rng = np.random.default_rng(0)
sentence = ["time", "flies", "like", "an", "arrow"]
vocabulary = {word: row for row, word in enumerate(sorted(sentence))}
embedding = rng.normal(size=(len(vocabulary), 512)).astype("float32")
tokens = np.array([vocabulary[word] for word in sentence])
vectors = embedding[tokens]
print(tokens, vectors.shape)

# %% positions
steps = np.arange(5)[:, None] / 10000 ** (np.arange(0, 512, 2) / 512)  # (5, 256)
positions = np.zeros((5, 512), "float32")
positions[:, 0::2] = np.sin(steps)
positions[:, 1::2] = np.cos(steps)

# %% broadcast
wrong = vectors + positions[:, None, :]  # (5, 512) + (5, 1, 512), as in the script
print(wrong.shape, "->", wrong.reshape(1, -1, 512).shape)

# %% added
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
