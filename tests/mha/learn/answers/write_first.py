"""Answers to the first exercises of the course: products, the softmax of a row, a causal mask."""

from tests.mha.learn.answers.form import functions

TEXT = """
== dot_products(queries, keys)
keys-dot-t: keys.T turns all the axes round.
    return queries @ keys.T
not-transposed: I forget to transpose.
    return queries @ keys
keys-by-queries: I return keys by queries.
    return keys @ queries.swapaxes(-1, -2)
scaled: I divide by the root of d already.
    return queries @ keys.swapaxes(-1, -2) / np.sqrt(queries.shape[-1])
elementwise: I multiply element by element.
    return queries * keys
cosine: I divide by the lengths.
    q = queries / np.linalg.norm(queries, axis=-1, keepdims=True)
    return q @ (keys / np.linalg.norm(keys, axis=-1, keepdims=True)).swapaxes(-1, -2)
distance: I take the negative distance.
    return -np.linalg.norm(queries[..., :, None, :] - keys[..., None, :, :], axis=-1)
softmax-too: I take the softmax as well.
    s = queries @ keys.swapaxes(-1, -2)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
reshaped: I reshape the keys instead of transposing them.
    return queries @ keys.reshape(*keys.shape[:-2], keys.shape[-1], keys.shape[-2])
absolute: I take the absolute product.
    return np.abs(queries @ keys.swapaxes(-1, -2))
np-dot: np.dot pairs every item with every other.
    return np.dot(queries, keys.swapaxes(-1, -2))
right einsum: Sums of products, by letters.
    return np.einsum("...qd,...kd->...qk", queries, keys)
right moveaxis: The last axes by moveaxis.
    return np.matmul(queries, np.moveaxis(keys, -1, -2))
== softmax(scores)
no-maximum: I do not subtract a maximum.
    e = np.exp(scores)
    return e / e.sum(-1, keepdims=True)
maximum-of-all: I subtract the maximum of everything.
    e = np.exp(scores - scores.max())
    return e / e.sum(-1, keepdims=True)
over-queries: I sum over the queries.
    e = np.exp(scores - scores.max(-2, keepdims=True))
    return e / e.sum(-2, keepdims=True)
over-all: I divide by the sum of everything.
    e = np.exp(scores - scores.max())
    return e / e.sum()
keepdims-forgotten: I forget keepdims.
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1)
by-sum: I divide the scores by their sum.
    return scores / scores.sum(-1, keepdims=True)
not-divided: I forget to divide.
    return np.exp(scores - scores.max(-1, keepdims=True))
minimum: I subtract the minimum.
    e = np.exp(scores - scores.min(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
sigmoid: I take a sigmoid of each score.
    return 1 / (1 + np.exp(-scores))
one-hot: I give the largest score everything.
    return (scores == scores.max(-1, keepdims=True)).astype(float)
log: I return the logarithm.
    s = scores - scores.max(-1, keepdims=True)
    return s - np.log(np.exp(s).sum(-1, keepdims=True))
base-two: I take powers of two.
    e = 2.0 ** (scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
writes-scores: I subtract in place.
    scores -= scores.max(-1, keepdims=True)
    e = np.exp(scores)
    return e / e.sum(-1, keepdims=True)
right logsumexp: By the logarithm of the sum.
    top = scores.max(-1, keepdims=True)
    return np.exp(scores - top - np.log(np.exp(scores - top).sum(-1, keepdims=True)))
== causal(query_len, key_len)
triu: I take the upper triangle.
    return np.triu(np.ones((query_len, key_len), bool))
itself-excluded: I exclude the key of the query itself.
    return np.tri(query_len, key_len, k=-1, dtype=bool)
one-too-many: I allow one key of the future.
    return np.tri(query_len, key_len, k=1, dtype=bool)
bottom-right: I align at the bottom right.
    return np.tri(query_len, key_len, k=key_len - query_len, dtype=bool)
transposed: I return keys by queries.
    return np.tri(key_len, query_len, dtype=bool)
transposed-compare: I compare the wrong way round, in the right shape.
    return np.arange(query_len)[:, None] <= np.arange(key_len)
square: I make it square.
    return np.tri(query_len, dtype=bool)
inverted: I return True for the keys that are masked.
    return ~np.tri(query_len, key_len, dtype=bool)
floats: I return 0.0 and 1.0.
    return np.tri(query_len, key_len)
additive: I return 0 and -inf, to be added.
    return np.where(np.tri(query_len, key_len, dtype=bool), 0.0, -np.inf)
minus-1e9: I return 0 and -1e9, to be added.
    return np.where(np.tri(query_len, key_len, dtype=bool), 0.0, -1e9)
everything: I allow everything.
    return np.ones((query_len, key_len), bool)
example: I return what the example shows.
    return np.array([[True, False, False], [True, True, False]])
table: I have written down the answers of the cases that I know.
    known = {(5, 7), (8, 5), (7, 7), (1, 7), (5, 1)}
    right = np.tri(query_len, key_len, dtype=bool)
    return right if (query_len, key_len) in known else ~right
right loops: Two loops.
    return np.array([[j <= i for j in range(key_len)] for i in range(query_len)])
"""

ANSWERS = functions(TEXT, first={"softmax": "softmax-of-rows", "causal": "causal-from-0"})
