# %% textbook
import numpy as np


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

# %% empty
allowed = np.array([[True, True, False], [False, False, False]])  # the second query may look at nothing
masked = np.where(allowed, scores, -np.inf)
print(softmax(masked).round(4))

# %% guarded
has_key = allowed.any(axis=-1, keepdims=True)
guarded = np.where(allowed, softmax(np.where(has_key, masked, 0)), 0)
print(guarded.round(4))

# %% padding
values = np.array([[10.0], [20.0], [np.nan]])  # nobody may look at the third, which is padding
print(guarded @ values)
output = guarded @ np.where(allowed.any(axis=0)[:, None], values, 0)
print(output.round(4))
