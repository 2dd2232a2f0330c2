# %% one
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()
pairs = np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]])  # three sentences: what stands at the two places that matter
print("one head, half and half:", np.dot(pairs, np.array([0.5, 0.5])))
two = np.stack([np.dot(pairs, np.array([1.0, 0.0])), np.dot(pairs, np.array([0.0, 1.0]))], axis=1)  # a head for each
print("two heads, then W_o:    ", np.dot(two, np.array([1.0, -1.0])))

# %% loop
rng = numpy.random.default_rng(0)
x = np.array(rng.normal(size=(5, 12)), dtype="float32")
w_q, w_k, w_v = np.array(rng.normal(size=(3, 3, 4, 12)) / 12**0.5, dtype="float32")  # of 3 heads a (4, 12) each
w_o = np.array(rng.normal(size=(12, 12)) / 12**0.5, dtype="float32")


def attend(q, k, v):  # (..., L, d) each
    weights = npx.softmax(np.matmul(q, k.swapaxes(-1, -2)) / q.shape[-1] ** 0.5, axis=-1)
    return weights, np.matmul(weights, v)


parts = [attend(np.dot(x, w_q[head].T), np.dot(x, w_k[head].T), np.dot(x, w_v[head].T))[1] for head in range(3)]
merged = np.concatenate(parts, axis=1)
print([part.shape for part in parts], "->", merged.shape)

# %% fused
fused_q, fused_k, fused_v = w_q.reshape(12, 12), w_k.reshape(12, 12), w_v.reshape(12, 12)  # one below the other


def split(y):  # (L, H * d) -> (H, L, d)
    return y.reshape(len(y), 3, 4).swapaxes(0, 1)


weights, heads = attend(split(np.dot(x, fused_q.T)), split(np.dot(x, fused_k.T)), split(np.dot(x, fused_v.T)))
print("as the loop:", np.abs(heads.swapaxes(0, 1).reshape(5, 12) - merged).max().item() < 1e-6)

# %% output
output = np.dot(merged, w_o.T)
summed = sum(
    np.dot(parts[head], w_o[:, 4 * head : 4 * head + 4].T) for head in range(3)
)  # a block of W_o for each head
print(output.shape, "as the sum over heads:", np.abs(summed - output).max().item() < 1e-6)

# %% cost
for count in (1, 3, 6, 12):  # W_q, W_k, W_v and W_o: 12 by the channels of all heads
    print(f"{count:2} heads of width {12 // count:2}: {4 * (count * (12 // count)) * 12} parameters")
