# %% layer
import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(8, 32))  # 8 words; 4 heads of width 8
w_q, w_k, w_v, w_o = rng.normal(size=(4, 32, 32)) / 32**0.5
w_q[8:16] *= 8  # sharp weights for head 1,
w_o[:, 8:16] *= 0.1  # and a small block of W_o
w_o[:, 24:] *= 0.5


def layer(w_q, w_k, w_v, w_o, num_heads):
    q, k, v = ((x @ w.T).reshape(8, num_heads, 8).swapaxes(0, 1) for w in (w_q, w_k, w_v))
    scores = q @ k.swapaxes(1, 2) / 8**0.5
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)
    return weights, (weights @ v).swapaxes(0, 1).reshape(8, -1) @ w_o.T


weights, output = layer(w_q, w_k, w_v, w_o, 4)

# %% look
largest = weights.max(axis=-1).mean(axis=-1)
print("largest weight of a query, by head:", largest.round(2))

# %% importance
importance = np.zeros(4)
for head in range(4):
    without = w_o.copy()
    without[:, 8 * head : 8 * head + 8] = 0  # nothing of this head gets out
    change = layer(w_q, w_k, w_v, without, 4)[1] - output
    importance[head] = np.linalg.norm(change) / np.linalg.norm(output)
print("change of the output without it:   ", importance.round(2))

# %% cut
kept = np.sort(np.argsort(importance)[2:])  # the two that matter most
rows = (8 * kept[:, None] + np.arange(8)).ravel()  # their channels
cut_q, cut_k, cut_v, cut_o = w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]
cut_weights, cut = layer(cut_q, cut_k, cut_v, cut_o, 2)
masked_o = np.zeros_like(w_o)
masked_o[:, rows] = w_o[:, rows]
masked = layer(w_q, w_k, w_v, masked_o, 4)[1]
print("heads", kept, "of", w_q.shape, "are", cut_q.shape)
print("equal:", np.allclose(cut, masked, atol=1e-5))
