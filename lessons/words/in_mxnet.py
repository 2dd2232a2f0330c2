# %% words
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()
rng = numpy.random.default_rng(0)
sentence = ["time", "flies", "like", "an", "arrow"]
vocabulary = {word: row for row, word in enumerate(sorted(sentence))}
embedding = np.array(rng.normal(size=(len(vocabulary), 512)))
tokens = np.array([vocabulary[word] for word in sentence], dtype=int)
vectors = embedding[tokens]
print(tokens, vectors.shape)

# %% positions
steps = np.arange(5)[:, None] / 10000 ** (np.arange(0, 512, 2) / 512)  # (5, 256)
positions = np.zeros((5, 512))
positions[:, 0::2] = np.sin(steps)
positions[:, 1::2] = np.cos(steps)

# %% broadcast
wrong = vectors + positions[:, None, :]  # (5, 512) + (5, 1, 512), as in the script
print(wrong.shape, "->", wrong.reshape(1, -1, 512).shape)

# %% added
x = vectors + positions
print(x.shape)

# %% projections
w_q, w_k, w_v, w_o = np.array(rng.normal(size=(4, 512, 512))) / 512**0.5


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
