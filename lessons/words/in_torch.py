# %% words
import numpy as np
import torch

rng = np.random.default_rng(0)
sentence = ["time", "flies", "like", "an", "arrow"]
vocabulary = {word: row for row, word in enumerate(sorted(sentence))}
embedding = torch.tensor(rng.normal(size=(len(vocabulary), 512)), dtype=torch.float32)
tokens = torch.tensor([vocabulary[word] for word in sentence])
vectors = embedding[tokens]
print(tokens, vectors.shape)

# %% positions
steps = torch.arange(5)[:, None] / 10000 ** (torch.arange(0, 512, 2) / 512)  # (5, 256)
positions = torch.zeros(5, 512)
positions[:, 0::2] = torch.sin(steps)
positions[:, 1::2] = torch.cos(steps)

# %% broadcast
wrong = vectors + positions[:, None, :]  # (5, 512) + (5, 1, 512), as in the script
print(wrong.shape, "->", wrong.reshape(1, -1, 512).shape)

# %% added
x = vectors + positions
print(x.shape)

# %% projections
w_q, w_k, w_v, w_o = torch.tensor(rng.normal(size=(4, 512, 512)), dtype=torch.float32) / 512**0.5


def split(x):  # (L, 512) -> (8, L, 64)
    return x.unflatten(1, (8, 64)).transpose(0, 1)


q, k, v = split(x @ w_q.T), split(x @ w_k.T), split(x @ w_v.T)
print(q.shape, k.shape, v.shape)

# %% attend
scores = q @ k.transpose(1, 2) / 8  # the root of 64
weights = torch.softmax(scores, dim=-1)
heads = weights @ v  # (8, 5, 64)
output = heads.transpose(0, 1).flatten(1) @ w_o.T
print(weights.shape, heads.shape, output.shape)
