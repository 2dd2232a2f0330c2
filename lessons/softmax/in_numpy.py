# %% shares
import numpy as np


def unsafe_softmax(scores):
    powers = np.exp(scores)
    return powers / powers.sum(axis=-1, keepdims=True)


row = np.array([[2.0, 1.0, -1.0]])
print("divided by their sum:", row / row.sum())
print("softmax:             ", unsafe_softmax(row).round(3))
print("all scores + 10:     ", unsafe_softmax(row + 10).round(3))

# %% factors
factors = np.linspace(0, 4, 9)[:, None]
offered = np.array([[0.0], [1.0], [2.0], [2.5]])  # four scores
shares = unsafe_softmax(factors @ offered.T)  # (9, 4)
mean = shares @ offered
for at in (0, 2, 8):
    print(f"scores times {factors[at, 0]:.0f}:", shares[at].round(3))


# %% textbook
def textbook_softmax(scores):
    powers = np.exp(scores - scores.max())  # the maximum of the whole matrix
    return powers / powers.sum(axis=-1, keepdims=True)


queries = np.array([[1.0], [1000.0]])
keys = np.array([[1.0], [2.0], [3.0]])
scores = queries @ keys.T  # a row of small scores beside a row of large ones
print(scores)
print(textbook_softmax(scores).round(4))


# %% rows
def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))  # of each row its own
    return powers / powers.sum(axis=-1, keepdims=True)


weights = softmax(scores)
print(weights.round(4))
