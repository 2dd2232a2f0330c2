# %% vectors
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()
angles = np.radians(36 * np.arange(10))
vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # (10, 2)
query = np.array([[numpy.cos(numpy.pi / 4), numpy.sin(numpy.pi / 4)]])  # (1, 2), at 45 degrees


# %% attend
def attend(queries, keys, values):
    scores = np.matmul(queries, keys.T)  # (Lq, Lk)
    weights = npx.softmax(scores, axis=-1)
    return weights, np.matmul(weights, values)


weights, output = attend(query, vectors, vectors)
print(weights[0].asnumpy().round(3))
print(output[0])

# %% long
longer = vectors.copy()
longer[3] *= 5  # the one at 108 degrees
long_weights, long_output = attend(query, longer, longer)
print(long_weights[0].asnumpy().round(3))
print(long_output[0].asnumpy().round(4))

# %% several
directions = np.radians(np.array([45, 150, 270]))
queries = np.stack([np.cos(directions), np.sin(directions)], axis=1)  # (3, 2)
all_weights, outputs = attend(queries, vectors, vectors)
print(outputs.shape, all_weights.shape, all_weights.sum(axis=-1).asnumpy().round(5))

# %% additive
rng = numpy.random.default_rng(0)
w_q, w_k, vector = (np.array(rng.normal(size=size), dtype="float32") for size in ((8, 2), (8, 2), 8))
asked, offered = np.dot(query, w_q.T), np.dot(longer, w_k.T)
hidden = np.tanh(asked[:, None] + offered[None])  # (1, 10, 8), a small network for each pair
additive_scores = np.dot(hidden, vector)  # (1, 10)
additive_weights = npx.softmax(additive_scores, axis=-1)
print(additive_weights[0].asnumpy().round(3))
