# %% layer
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()
rng = numpy.random.default_rng(0)
x = np.array(rng.normal(size=(8, 32)), dtype="float32")  # 8 words; 4 heads of width 8
w_q, w_k, w_v, w_o = np.array(rng.normal(size=(4, 32, 32)) / 32**0.5, dtype="float32")
w_q[8:16] *= 8  # sharp weights for head 1,
w_o[:, 8:16] *= 0.1  # and a small block of W_o
w_o[:, 24:] *= 0.5


def layer(w_q, w_k, w_v, w_o, num_heads):
    q, k, v = (np.dot(x, w.T).reshape(8, num_heads, 8).swapaxes(0, 1) for w in (w_q, w_k, w_v))
    weights = npx.softmax(np.matmul(q, k.swapaxes(1, 2)) / 8**0.5, axis=-1)
    return weights, np.dot(np.matmul(weights, v).swapaxes(0, 1).reshape(8, -1), w_o.T)


weights, output = layer(w_q, w_k, w_v, w_o, 4)

# %% look
largest = weights.max(axis=-1).mean(axis=-1)
print("largest weight of a query, by head:", largest.asnumpy().round(2))

# %% importance
importance = np.zeros(4)
for head in range(4):
    without = w_o.copy()
    without[:, 8 * head : 8 * head + 8] = 0  # nothing of this head gets out
    change = layer(w_q, w_k, w_v, without, 4)[1] - output
    importance[head] = np.linalg.norm(change) / np.linalg.norm(output)
print("change of the output without it:   ", importance.asnumpy().round(2))

# %% cut
kept = np.array(sorted(numpy.argsort(importance.asnumpy())[2:].tolist()), dtype=int)  # the two that matter most
rows = (8 * kept[:, None] + np.arange(8, dtype=int)).reshape(-1)  # their channels
cut_q, cut_k, cut_v, cut_o = w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]
cut_weights, cut = layer(cut_q, cut_k, cut_v, cut_o, 2)
masked_o = np.zeros_like(w_o)
for row in rows.tolist():
    masked_o[:, row] = w_o[:, row]
masked = layer(w_q, w_k, w_v, masked_o, 4)[1]
same = np.abs(cut - masked).max().item() < 1e-5
print("heads", kept, "of", w_q.shape, "are", cut_q.shape)
print("equal:", same)
