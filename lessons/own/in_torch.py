# %% layer
import numpy as np
import torch

rng = np.random.default_rng(0)
x = torch.tensor(rng.normal(size=(8, 32)), dtype=torch.float32)  # 8 words; 4 heads of width 8
w_q, w_k, w_v, w_o = torch.tensor(rng.normal(size=(4, 32, 32)) / 32**0.5, dtype=torch.float32)
w_q[8:16] *= 8  # sharp weights for head 1,
w_o[:, 8:16] *= 0.1  # and a small block of W_o
w_o[:, 24:] *= 0.5


def layer(w_q, w_k, w_v, w_o, num_heads):
    q, k, v = ((x @ w.T).unflatten(1, (num_heads, 8)).transpose(0, 1) for w in (w_q, w_k, w_v))
    weights = torch.softmax(q @ k.transpose(1, 2) / 8**0.5, dim=-1)
    return weights, (weights @ v).transpose(0, 1).flatten(1) @ w_o.T


weights, output = layer(w_q, w_k, w_v, w_o, 4)

# %% look
largest = weights.amax(dim=-1).mean(dim=-1)
print("largest weight of a query, by head:", largest.numpy().round(2))

# %% importance
importance = torch.zeros(4)
for head in range(4):
    without = w_o.clone()
    without[:, 8 * head : 8 * head + 8] = 0  # nothing of this head gets out
    change = layer(w_q, w_k, w_v, without, 4)[1] - output
    importance[head] = change.norm() / output.norm()
print("change of the output without it:   ", importance.numpy().round(2))

# %% cut
kept = importance.argsort()[2:].sort().values  # the two that matter most
rows = (8 * kept[:, None] + torch.arange(8)).ravel()  # their channels
cut_q, cut_k, cut_v, cut_o = w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]
cut_weights, cut = layer(cut_q, cut_k, cut_v, cut_o, 2)
masked_o = torch.zeros_like(w_o)
masked_o[:, rows] = w_o[:, rows]
masked = layer(w_q, w_k, w_v, masked_o, 4)[1]
same = torch.allclose(cut, masked, atol=1e-5)
print("heads", kept.numpy(), "of", tuple(w_q.shape), "are", tuple(cut_q.shape))
print("equal:", same)
