# %% words
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()
rng = numpy.random.default_rng(0)
vectors = np.array(rng.normal(size=(5, 512)), dtype="float32")  # five words
steps = np.arange(5)[:, None] / 10000 ** (np.arange(0, 512, 2) / 512)  # (5, 256)
positions = np.zeros((5, 512))
positions[:, 0::2] = np.sin(steps)
positions[:, 1::2] = np.cos(steps)
x = vectors + positions
print(x.shape)

# %% projections
w_q, w_k, w_v, w_o = np.array(rng.normal(size=(4, 512, 512)), dtype="float32") / 512**0.5


def split(x):  # (L, 512) -> (8, L, 64)
    return x.reshape(len(x), 8, 64).swapaxes(0, 1)


q, k, v = (split(np.dot(x, w.T)) for w in (w_q, w_k, w_v))
print(q.shape, k.shape, v.shape)

# %% attend
scores = np.matmul(q, k.swapaxes(1, 2)) / 8  # the root of 64
weights = npx.softmax(scores, axis=-1)
heads = np.matmul(weights, v)  # (8, 5, 64)
output = np.dot(heads.swapaxes(0, 1).reshape(5, 512), w_o.T)
print(weights.shape, heads.shape, output.shape)


# %% around


def normed(y):  # each vector to mean 0 and deviation 1
    return npx.layer_norm(y, np.ones(512), np.zeros(512), axis=-1, eps=1e-5)


first = normed(x + output)  # the words themselves go on beside what attention found
deviations = [part.std().item() for part in (x, x + output, first)]
print("deviation of x {:.2f}, of x + attention {:.2f}\nnormed {:.2f}".format(*deviations))

# %% feed_forward
w_1 = np.array(rng.normal(size=(2048, 512)), dtype="float32") / 512**0.5
w_2 = np.array(rng.normal(size=(512, 2048)), dtype="float32") / 2048**0.5
hidden = npx.relu(np.dot(first, w_1.T))  # (5, 2048), each position by itself
result = normed(first + np.dot(hidden, w_2.T))
print(hidden.shape, "->", result.shape)

# %% alone
order = np.array([4, 2, 0, 3, 1], dtype=int)
again = normed(first[order] + np.dot(npx.relu(np.dot(first[order], w_1.T)), w_2.T))  # the same in another order
print("each position by itself:", np.abs(again - result[order]).max().item() < 1e-4)
