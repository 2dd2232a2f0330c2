# %% masks
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()
x = numpy.random.default_rng(0).normal(size=(5, 4))  # five words, each a query, a key and a value
x[4] *= 10  # the last of them is long: most scores with it are large
x = np.array(x)
causal = np.array(numpy.tri(5, dtype=bool))  # query i may attend to keys 0 to i
lengths = np.broadcast_to(np.arange(5) < 3, (5, 5))  # only the first three keys are words, the others padding
print(lengths.asnumpy().astype(int))


# %% attend
def masked_softmax(scores, allowed):
    return npx.softmax(np.where(allowed, scores, -np.inf), axis=-1)


scores = np.dot(x, x.T) / 4**0.5
everything = masked_softmax(scores, np.ones((5, 5), dtype=bool))
causal_weights = masked_softmax(scores, causal)
length_weights = masked_softmax(scores, lengths)
causal_output, length_output = np.dot(causal_weights, x), np.dot(length_weights, x)
most = length_weights[:, 4].max().item()
print(f"largest score: {scores.max().item():.1f} its weight behind the mask: {most}")

# %% batch
valid_lens = np.array([3, 5])  # of two items
allowed_keys = np.arange(5) < valid_lens[:, None, None, None]  # (2, 1, 1, 5)
many_scores = np.stack([scores, scores])[:, None]  # (2, 1, 5, 5): two items, one head, five queries and keys
many_weights = masked_softmax(many_scores, allowed_keys)
most = many_weights[0, ..., 3:].max().item()
print(allowed_keys.shape, many_weights.shape, f"padding of the first item: {most}")

# %% empty
queries = np.array([[1.0], [1000.0]])
keys = np.array([[1.0], [2.0], [3.0]])
allowed = np.array([[True, True, False], [False, False, False]], dtype=bool)  # the second query may look at nothing
few_scores = np.dot(queries, keys.T)
print(masked_softmax(few_scores, allowed).asnumpy().round(4))

# %% guarded
has_key = np.any(allowed, axis=-1, keepdims=True)
guarded = np.where(allowed, masked_softmax(few_scores, np.where(has_key, allowed, ~allowed)), 0)
print(guarded.asnumpy().round(4))

# %% broken
nan_score = np.array([[np.nan, 2.0, 3.0]])  # of the first query, which may not look at the third key
powers = np.exp(np.where(allowed[:1], nan_score, -np.inf))
found = powers / powers.sum(axis=-1, keepdims=True)
print("npx.softmax loses the second NaN:", masked_softmax(nan_score, allowed[:1]))
print("by row:", np.where(has_key[:1], found, 0))
print("by key:", np.where(allowed[:1], found, 0))

# %% padding
values = np.array([[10.0], [20.0], [np.nan]])  # nobody may look at the third, which is padding
print(np.matmul(guarded, values))
output = np.matmul(guarded, np.where(np.any(allowed, axis=0)[:, None], values, 0))
print(output.asnumpy().round(4))
