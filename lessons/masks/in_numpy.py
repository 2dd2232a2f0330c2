# %% masks
import numpy as np

x = np.random.default_rng(0).normal(size=(5, 4))  # five words, each a query, a key and a value
x[4] *= 10  # the last of them is long: most scores with it are large
causal = np.tri(5, dtype=bool)  # query i may attend to keys 0 to i
lengths = np.broadcast_to(np.arange(5) < 3, (5, 5))  # only the first three keys are words
print(lengths.astype(int))


# %% attend
def masked_softmax(scores, allowed):
    masked = np.where(allowed, scores, -np.inf)
    powers = np.exp(masked - masked.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


scores = x @ x.T / np.sqrt(4)
everything = masked_softmax(scores, np.ones((5, 5), bool))
causal_weights = masked_softmax(scores, causal)
length_weights = masked_softmax(scores, lengths)
causal_output, length_output = causal_weights @ x, length_weights @ x
print("largest score:", scores.max().round(1), "its weight behind the mask:", length_weights[:, 4].max())

# %% batch
valid_lens = np.array([3, 5])  # of two items
allowed_keys = np.arange(5) < valid_lens[:, None, None, None]  # (2, 1, 1, 5)
many_scores = np.stack([scores, scores])[:, None]  # (2, 1, 5, 5): two items, one head
many_weights = masked_softmax(many_scores, allowed_keys)
print(allowed_keys.shape, many_weights.shape, "padding of the first item:", many_weights[0, ..., 3:].max())

# %% empty
queries = np.array([[1.0], [1000.0]])
keys = np.array([[1.0], [2.0], [3.0]])
allowed = np.array([[True, True, False], [False, False, False]])  # the second query may look at nothing
print(masked_softmax(queries @ keys.T, allowed).round(4))

# %% guarded
has_key = allowed.any(axis=-1, keepdims=True)
guarded = np.where(allowed, masked_softmax(queries @ keys.T, allowed | ~has_key), 0)
print(guarded.round(4))

# %% broken
nan_score = np.array([[np.nan, 2.0, 3.0]])  # of the first query, which may not look at the third key
found = masked_softmax(nan_score, allowed[:1])
print("by row:", np.where(has_key[:1], found, 0))
print("by key:", np.where(allowed[:1], found, 0))

# %% padding
values = np.array([[10.0], [20.0], [np.nan]])  # nobody may look at the third, which is padding
print(guarded @ values)
output = guarded @ np.where(allowed.any(axis=0)[:, None], values, 0)
print(output.round(4))
