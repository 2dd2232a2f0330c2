# %% shares
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()


def unsafe_softmax(scores):
    powers = np.exp(scores)
    return powers / powers.sum(axis=-1, keepdims=True)


row = np.array([[2.0, 1.0, -1.0]])
print("divided by their sum:", row / row.sum())
print("softmax:             ", unsafe_softmax(row).asnumpy().round(3))
print("all scores + 10:     ", unsafe_softmax(row + 10).asnumpy().round(3))

# %% factors
factors = np.linspace(0, 4, 9)[:, None]
offered = np.array([[0.0], [1.0], [2.0], [2.5]])  # four scores
shares = unsafe_softmax(np.dot(factors, offered.T))  # (9, 4)
mean = np.dot(shares, offered)
for at in (0, 2, 8):
    print(f"scores times {factors[at, 0].item():.0f}:", shares[at].asnumpy().round(3))


# %% textbook
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
