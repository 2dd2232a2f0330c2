# %% vectors
import torch

angles = torch.deg2rad(36.0 * torch.arange(10))
vectors = torch.stack([torch.cos(angles), torch.sin(angles)], dim=1)  # (10, 2)
eighth = torch.tensor(torch.pi / 4)
query = torch.stack([torch.cos(eighth), torch.sin(eighth)])[None]  # (1, 2), at 45 degrees


# %% attend
def attend(queries, keys, values):
    scores = queries @ keys.T  # (Lq, Lk)
    weights = torch.softmax(scores, dim=-1)
    return weights, weights @ values


weights, output = attend(query, vectors, vectors)
print(weights[0])
print(output[0])

# %% long
longer = vectors.clone()
longer[3] *= 5  # the one at 108 degrees
long_weights, long_output = attend(query, longer, longer)
print(long_weights[0])
print(long_output[0])

# %% several
directions = torch.deg2rad(torch.tensor([45.0, 150.0, 270.0]))
queries = torch.stack([torch.cos(directions), torch.sin(directions)], dim=1)  # (3, 2)
all_weights, outputs = attend(queries, vectors, vectors)
print(outputs.shape, all_weights.shape, all_weights.sum(dim=-1))

# %% additive
import numpy as np

rng = np.random.default_rng(0)
w_q, w_k, vector = (torch.tensor(rng.normal(size=size), dtype=torch.float32) for size in ((8, 2), (8, 2), 8))
hidden = torch.tanh((query @ w_q.T)[:, None] + (longer @ w_k.T)[None])  # (1, 10, 8), a small network for each pair
additive_scores = hidden @ vector  # (1, 10)
additive_weights = torch.softmax(additive_scores, dim=-1)
print(additive_weights[0])
