# %% words
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()
rng = numpy.random.default_rng(0)
x = np.array(rng.normal(size=(5, 512)), dtype="float32")  # five words with their positions

# %% projections
w_q, w_k, w_v, w_o = np.array(rng.normal(size=(4, 512, 512)), dtype="float32") / 512**0.5


def split(x):  # (L, 512) -> (8, L, 64)
    return x.reshape(len(x), 8, 64).swapaxes(0, 1)


# %% attend
def attend(x, y):  # queries from x, keys and values from y
    q, k, v = split(np.dot(x, w_q.T)), split(np.dot(y, w_k.T)), split(np.dot(y, w_v.T))
    weights = npx.softmax(np.matmul(q, k.swapaxes(1, 2)) / 8, axis=-1)  # 8 is the root of 64
    heads = np.matmul(weights, v)  # (8, L of x, 64)
    return weights, heads, np.dot(heads.swapaxes(0, 1).reshape(len(x), 512), w_o.T)


weights, heads, output = attend(x, x)
print(weights.shape, heads.shape, output.shape)


# %% around


def normed(y):  # each vector to mean 0 and deviation 1
    return npx.layer_norm(y, np.ones(512), np.zeros(512), axis=-1, eps=1e-5)


first = normed(x + output)  # the words themselves go on beside what attention found
deviations = [part.std().item() for part in (x, x + output, first)]
print("deviation: x {:.2f}, x + attention {:.2f}, normed {:.2f}".format(*deviations))

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

# %% cross
read = np.array(rng.normal(size=(7, 512)), dtype="float32")  # seven words, as an encoder gives them
cross_weights, _, cross = attend(first, read)
print(cross_weights.shape, cross.shape)
