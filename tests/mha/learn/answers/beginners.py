"""Answers of beginners to all exercises of the course, written from the exercises' texts alone."""

from tests.mha.learn.answers.form import edits, functions
from tests.mha.learn.answers.layer import FUNCTION
from tests.mha.learn.answers.measure import BEGINNERS

STEPS = """
== weighted_sum(weights, values)
both-transposed: I transpose the result, as books write values in columns.
    return (weights @ values).swapaxes(-1, -2)
values-transposed: I transpose the values, as keys are.
    return weights @ values.swapaxes(-1, -2)
keys-averaged: I take the mean over the keys of weight times value.
    return (weights[..., None] * values[..., None, :, :]).mean(axis=-2)
zero-rows-averaged: A row of weights that are all 0 gets the mean of the values.
    empty = (weights == 0).all(-1, keepdims=True)
    return np.where(empty, values.mean(-2, keepdims=True), weights @ values)
== dot_products(queries, keys)
one-by-one: I pair query i with key i.
    n = min(queries.shape[-2], keys.shape[-2])
    return (queries[..., :n, :] * keys[..., :n, :]).sum(-1)
diagonal-alone: My loop sets the products of query i with key i alone.
    scores = np.zeros((*queries.shape[:-1], keys.shape[-2]))
    for i in range(min(queries.shape[-2], keys.shape[-2])):
        scores[..., i, i] = (queries[..., i, :] * keys[..., i, :]).sum(-1)
    return scores
last-key-forgotten: My loop over the keys ends one too early.
    scores = np.zeros((*queries.shape[:-1], keys.shape[-2]))
    for j in range(keys.shape[-2] - 1):
        scores[..., j] = (queries * keys[..., j : j + 1, :]).sum(-1)
    return scores
keys-of-length-1: I divide the keys by their length.
    return queries @ (keys / np.linalg.norm(keys, axis=-1, keepdims=True)).swapaxes(-1, -2)
mean-of-products: I take the mean over the elements, not the sum.
    return (queries[..., :, None, :] * keys[..., None, :, :]).mean(-1)
== scores(queries, keys, scale)
divided-by-d: I divide by d and then by the root of the scale.
    s = queries @ keys.swapaxes(-1, -2)
    return s / np.sqrt(queries.shape[-1]) if scale is None else s * np.sqrt(abs(scale))
scale-of-one: Without a scale I multiply by 1.
    return queries @ keys.swapaxes(-1, -2) * (1.0 if scale is None else scale)
scale-or-one: I write `scale or 1`.
    return queries @ keys.swapaxes(-1, -2) * (scale or 1)
keys-alone-scaled: I scale the keys by the root of the scale.
    scale = 1 / np.sqrt(keys.shape[-1]) if scale is None else scale
    return queries @ (keys * np.sqrt(np.abs(scale))).swapaxes(-1, -2)
root-of-keys: I take the root of the number of queries.
    scale = 1 / np.sqrt(queries.shape[-2]) if scale is None else scale
    return queries @ keys.swapaxes(-1, -2) * scale
== project(x, weight, bias)
transposed-result: I write W x, as on paper, and get the channels in front.
    y = weight @ x.swapaxes(-1, -2)
    return y if bias is None else y + bias[:, None]
bias-in-front: I add the bias to x before the product.
    return x @ weight.T if bias is None else (x + bias[: x.shape[-1]]) @ weight.T
bias-where-none: Where there is no bias I add 1.
    return x @ weight.T + (1.0 if bias is None else bias)
first-position: I project the first position, and use it for all.
    y = np.broadcast_to(x[:, :1] @ weight.T, (*x.shape[:2], len(weight)))
    return y if bias is None else y + bias
== softmax(scores)
maximum-of-matrix: I subtract the maximum of each matrix.
    e = np.exp(scores - scores.max(axis=(-1, -2), keepdims=True))
    return e / e.sum(-1, keepdims=True)
maximum-of-columns: I subtract the maximum of each column.
    e = np.exp(scores - scores.max(axis=-2, keepdims=True))
    return e / e.sum(-1, keepdims=True)
mean-subtracted: I subtract the mean of the row.
    e = np.exp(scores - scores.mean(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
clipped: I clip the scores, so that nothing overflows.
    e = np.exp(np.clip(scores, -700, 700))
    return e / e.sum(-1, keepdims=True)
positive-scores: I set negative scores to 0 and divide by the sum.
    s = np.maximum(scores, 0)
    return s / s.sum(-1, keepdims=True)
divided-by-maximum: I divide by the maximum where it should be subtracted.
    e = np.exp(scores / scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
== weights_by_angle(degrees)
query-in-degrees: I forget the query when I make radians of degrees.
    angles = np.deg2rad(np.arange(0, 360, 36))
    keys = np.stack([np.cos(angles), np.sin(angles)], -1)
    s = keys @ np.array([np.cos(degrees), np.sin(degrees)]) / np.sqrt(2)
    e = np.exp(s - s.max())
    return e / e.sum()
sine-first: I write the query as (sin, cos).
    angles = np.deg2rad(np.arange(0, 360, 36))
    a = np.deg2rad(degrees)
    s = np.stack([np.cos(angles), np.sin(angles)], -1) @ np.array([np.sin(a), np.cos(a)]) / np.sqrt(2)
    e = np.exp(s)
    return e / e.sum()
shares-of-scores: I divide the scores by their sum.
    s = np.cos(np.deg2rad(degrees - np.arange(0, 360, 36))) / np.sqrt(2)
    return s / s.sum()
nearest-two: I share the weight between the two nearest keys.
    s = np.cos(np.deg2rad(degrees - np.arange(0, 360, 36)))
    w = np.where(s >= np.sort(s)[-2], s, 0)
    return w / w.sum()
by-distance: I score by the angle between them, not by the product.
    apart = np.abs((degrees - np.arange(0, 360, 36) + 180) % 360 - 180)
    e = np.exp(-np.deg2rad(apart) / np.sqrt(2))
    return e / e.sum()
== masked_softmax(scores, allowed)
scores-times-allowed: I multiply the scores by the mask.
    e = np.exp(scores * allowed - (scores * allowed).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
filled-very-low: I fill with -1e300.
    s = np.where(allowed, scores, -1e300)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
inverted-by-minus: I subtract infinity where a key is allowed.
    s = scores - np.where(allowed, np.inf, 0)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
filled-with-minimum: I fill with the smallest score.
    s = np.where(allowed, scores, scores.min())
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
masked-then-shared: I set weights to 0 after the softmax and divide by their sum.
    e = np.exp(scores - scores.max(-1, keepdims=True))
    w = np.where(allowed, e / e.sum(-1, keepdims=True), 0)
    return w / w.sum(-1, keepdims=True)
maximum-of-all-allowed: I subtract the largest score that is allowed anywhere.
    e = np.where(allowed, np.exp(scores - scores[allowed].max()), 0)
    return e / e.sum(-1, keepdims=True)
== empty_row(scores, allowed)
zeroed-by-has-key: I set rows without a key to 0, and nothing else.
    has_key = allowed.any(-1, keepdims=True)
    s = np.where(allowed | ~has_key, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.where(has_key, e / e.sum(-1, keepdims=True), 0)
times-has-key: I multiply by whether there is a key.
    has_key = allowed.any(-1, keepdims=True)
    s = np.where(allowed | ~has_key, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return has_key * e / e.sum(-1, keepdims=True)
times-allowed: I multiply the weights by the mask.
    has_key = allowed.any(-1, keepdims=True)
    s = np.where(allowed | ~has_key, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) * allowed
nan-is-zero: I set every NaN to 0.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    w = e / e.sum(-1, keepdims=True)
    return np.where(np.isnan(w), 0, w)
opened-rows-left: I open rows without a key, and forget to set them to 0.
    has_key = allowed.any(-1, keepdims=True)
    s = np.where(allowed | ~has_key, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
small-number-added: I add 1e-12 to the sum.
    s = np.where(allowed, scores, -np.inf)
    top = np.maximum(s.max(-1, keepdims=True), -1e308)
    e = np.exp(s - top)
    return e / (e.sum(-1, keepdims=True) + 1e-12)
== lengths(valid_lens, query_len, key_len)
lengths-as-they-are: I compare with the lengths as they are given.
    return np.arange(key_len) < valid_lens
one-axis-less: I leave out axis 1.
    lens = valid_lens[:, None] if valid_lens.ndim == 1 else valid_lens
    return np.arange(key_len) < lens[:, :, None]
one-axis-less-of-items: I leave out axis 1 of one kind of lengths.
    if valid_lens.ndim == 1:
        return np.arange(key_len) < valid_lens[:, None, None]
    return np.arange(key_len) < valid_lens[:, None, :, None]
first-item: I use the first item's length for all.
    lens = np.broadcast_to(valid_lens.reshape(len(valid_lens), -1)[:1], (len(valid_lens), query_len))
    return np.arange(key_len) < lens[:, None, :, None]
queries-too: I mask queries behind the length as well.
    lens = valid_lens[:, None] if valid_lens.ndim == 1 else valid_lens
    both = np.arange(key_len) < lens[:, None, :, None]
    return both & (np.arange(query_len)[:, None] < lens.max(1)[:, None, None, None])
one-less: I think that a length of n ends at key n - 2.
    lens = valid_lens[:, None] if valid_lens.ndim == 1 else valid_lens
    return np.arange(key_len) < lens[:, None, :, None] - 1
== causal(query_len, key_len)
later-keys: I write >= for <=.
    return np.arange(key_len) >= np.arange(query_len)[:, None]
keys-in-rows: I put the keys in the rows.
    return np.arange(key_len)[:, None] <= np.arange(query_len)
integers: I return 0 and 1.
    return np.tril(np.ones((query_len, key_len), dtype=int))
itself-alone: I allow the key of the query alone.
    return np.eye(query_len, key_len, dtype=bool)
== causal_offsets(query_len, key_len, offsets)
no-axes: I add the offsets to the queries as they are given.
    return np.arange(key_len) <= np.arange(query_len) + offsets
offset-on-the-keys: I add the offset to the keys.
    j = np.arange(key_len) + offsets[:, None, None, None]
    return j <= np.arange(query_len)[:, None]
offset-alone: I compare with the offset and forget i.
    return np.broadcast_to(np.arange(key_len) <= offsets[:, None, None, None], (len(offsets), 1, query_len, key_len))
largest-offset: I use the largest offset for all.
    return np.arange(key_len) <= np.arange(query_len)[:, None] + offsets.max()
at-the-end: I think that the last query always stands at the last key.
    return np.arange(key_len) <= np.arange(query_len)[:, None] + key_len - query_len
offsets-where-heads-are: I put the items where the heads are.
    return np.arange(key_len) <= np.arange(query_len)[:, None] + offsets[None, :, None, None]
== split(x, num_heads)
head-last: I reshape to (B, L, d, H).
    return x.reshape(*x.shape[:2], -1, num_heads).transpose(0, 3, 1, 2)
wide-heads: I take d for the number of heads.
    B, L, C = x.shape
    return x.reshape(B, L, num_heads, C // num_heads).transpose(0, 3, 1, 2)
first-head-repeated: Each head gets the first channels.
    d = x.shape[-1] // num_heads
    return np.stack([x[..., :d]] * num_heads, axis=1)
swapped-first: I exchange the axes before I cut.
    B, L, C = x.shape
    return x.swapaxes(1, 2).reshape(B, num_heads, L, C // num_heads)
== merge(heads)
joined-in-length: I join heads and positions.
    B, H, L, d = heads.shape
    return heads.reshape(B, H * L, d)
sum-of-heads: I add the heads up.
    return heads.sum(axis=1)
head-behind: I put the heads' axis last, and join then.
    B, H, L, d = heads.shape
    return np.moveaxis(heads, 1, -1).reshape(B, L, H * d)
== output(heads, weight, bias)
weight-as-it-is: I multiply by W as it is.
    B, H, L, d = heads.shape
    y = heads.swapaxes(1, 2).reshape(B, L, H * d) @ weight
    return y + bias if bias is not None else y
heads-not-merged: I project each head by the first columns.
    y = heads @ weight[:, : heads.shape[-1]].T
    return y + bias if bias is not None else y
heads-added: I add the heads before W.
    H, d = heads.shape[1], heads.shape[3]
    y = heads.sum(1) @ sum(weight[:, h * d : (h + 1) * d] for h in range(H)).T
    return y + bias if bias is not None else y
bias-to-heads: I add the bias only where there is one head.
    B, H, L, d = heads.shape
    y = heads.swapaxes(1, 2).reshape(B, L, H * d) @ weight.T
    return y + bias if bias is not None and H == 1 else y
"""
"""Below each signature the bodies."""

WHOLE = edits(
    "plain-function",
    FUNCTION,
    """
nan-to-num: I set NaN to 0 in the weights, wherever it comes from.
    np.where(allowed, e / np.where(some, e.sum(-1, keepdims=True), 1.0), 0.0) ==> \
np.nan_to_num(e / e.sum(-1, keepdims=True))
nan-to-num-of-inputs: I set every NaN of keys and values to 0, and use no padding.
    np.where(padding[..., None], 0.0, keys) ==> np.nan_to_num(keys)
    np.where(padding[..., None], 0.0, values) ==> np.nan_to_num(values)
queries-padded-too: I set the queries of padding to 0 too.
    np.sqrt(q.shape[-1]) ==> np.sqrt(q.shape[-1]) * ~padding[:, None, :1, None]
scaled-by-heads: I divide by the root of the number of heads.
    np.sqrt(q.shape[-1]) ==> np.sqrt(num_heads)
""",
)

ANSWERS = [*functions(STEPS), *WHOLE, *BEGINNERS]
