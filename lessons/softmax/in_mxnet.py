# %% textbook
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()


def textbook_softmax(scores):
    powers = np.exp(scores - scores.max())  # the maximum of the whole matrix
    return powers / powers.sum(axis=-1, keepdims=True)


queries = np.array([[1.0], [1000.0]])
keys = np.array([[1.0], [2.0], [3.0]])
scores = np.matmul(queries, keys.T)  # a row of small scores beside a row of large ones
print(scores)
print(textbook_softmax(scores).asnumpy().round(4))


# %% rows
def softmax(scores):
    return npx.softmax(scores, axis=-1)  # of each row its own


weights = softmax(scores)
print(weights.asnumpy().round(4))

# %% empty
allowed = np.array([[True, True, False], [False, False, False]], dtype=bool)  # the second query may look at nothing
masked = np.where(allowed, scores, -np.inf)
print(softmax(masked).asnumpy().round(4))

# %% guarded
has_key = np.any(allowed, axis=-1, keepdims=True)
guarded = np.where(allowed, softmax(np.where(has_key, masked, 0)), 0)
print(guarded.asnumpy().round(4))

# %% padding
values = np.array([[10.0], [20.0], [np.nan]])  # nobody may look at the third, which is padding
print(np.matmul(guarded, values))
output = np.matmul(guarded, np.where(np.any(allowed, axis=0)[:, None], values, 0))
print(output.asnumpy().round(4))
