"""Answers to the exercises of the track "write" that mask nothing."""

from tests.mha.learn.answers.form import functions

TEXT = """
== project(x, weight, bias)
bias-forgotten: I do not add the bias.
    return x @ weight.T
weight-not-transposed: I multiply by W, not by W transposed.
    y = x @ weight
    return y if bias is None else y + bias
weight-not-transposed-einsum: My einsum takes W as (in, out).
    y = np.einsum("bli,io->blo", x, weight)
    return y if bias is None else y + bias
none-added: I always add the bias, also where there is none.
    return x @ weight.T + bias
bias-twice: I add the bias twice.
    if bias is None:
        bias = 0
    y = x @ weight.T + bias
    return y + bias
bias-subtracted: I subtract the bias.
    return x @ weight.T - (0 if bias is None else bias)
truth-of-array: I ask `if bias` of an array.
    y = x @ weight.T
    if bias:
        y += bias
    return y
float32: I compute in float32.
    y = np.dot(x.astype(np.float32), weight.astype(np.float32).T)
    return y.astype(np.float64) if bias is None else y + bias
batch-flattened: I flatten batch and length and forget to undo it.
    y = x.reshape(-1, x.shape[-1]) @ weight.T
    return y if bias is None else y + bias
matrix: I use np.matrix, which has two axes only.
    y = x * np.matrix(weight).T
    return y if bias is None else y + bias
relu: I put a ReLU behind the projection, as in a dense layer.
    y = x @ weight.T + (0 if bias is None else bias)
    return np.maximum(y, 0)
scaled: I divide by the square root of the width, as an initialisation does.
    y = x @ weight.T / np.sqrt(x.shape[-1])
    return y if bias is None else y + bias
right tensordot: tensordot instead of @.
    y = np.tensordot(x, weight, axes=([2], [1]))
    return y + np.zeros(len(weight)) if bias is None else y + bias
right ones-channel: The bias is one more column of W, for a channel of ones.
    b = np.zeros(len(weight)) if bias is None else bias
    return np.concatenate([x, np.ones((*x.shape[:2], 1))], -1) @ np.column_stack([weight, b]).T
== split(x, num_heads)
reshape-alone: I reshape to the final shape at once, without a transpose.
    B, L, C = x.shape
    return x.reshape(B, num_heads, L, C // num_heads)
interleaved: I take channel i*H + h as element i of head h.
    B, L, C = x.shape
    return x.reshape(B, L, C // num_heads, num_heads).transpose(0, 3, 1, 2)
d2l-shape: I return (B * H, L, d), as d2l.ai's transpose_qkv does.
    B, L, C = x.shape
    x = x.reshape(B, L, num_heads, -1).transpose(0, 2, 1, 3)
    return x.reshape(-1, L, C // num_heads)
not-transposed: I forget the transpose and return (B, L, H, d).
    return x.reshape(x.shape[0], x.shape[1], num_heads, -1)
list-of-heads: I return a list of heads.
    return np.split(x, num_heads, axis=-1)
heads-first: I stack the heads in front of the batch: (H, B, L, d).
    return np.stack(np.split(x, num_heads, axis=-1))
width-64: I write the head width of BERT into the code.
    return x.reshape(x.shape[0], x.shape[1], num_heads, 64).transpose(0, 2, 1, 3)
keys-transposed: I transpose too far: (B, H, d, L).
    return x.reshape(x.shape[0], x.shape[1], num_heads, -1).transpose(0, 2, 3, 1)
heads-for-width: I take num_heads for the width of a head.
    return x.reshape(x.shape[0], x.shape[1], -1, num_heads).transpose(0, 2, 1, 3)
reversed: My loop goes from the last head to the first.
    d = x.shape[-1] // num_heads
    return np.stack([x[..., h * d:(h + 1) * d] for h in reversed(range(num_heads))], axis=1)
every-hth: I take every H-th channel for a head.
    return np.stack([x[..., h::num_heads] for h in range(num_heads)], axis=1)
head-twice: Each slice begins at h, not at h * d.
    d = x.shape[-1] // num_heads
    return np.stack([x[..., h:h + d] for h in range(num_heads)], axis=1)
right stack-of-split: np.split and np.stack.
    return np.stack(np.split(x, num_heads, axis=2), axis=1)
right one-hot: A one-hot tensor picks each head's channels.
    d = x.shape[-1] // num_heads
    pick = np.eye(x.shape[-1]).reshape(-1, num_heads, d)
    return np.einsum("blc,chd->bhld", x, pick)
== merge(heads)
reshape-alone: I reshape without a transpose.
    B, H, L, d = heads.shape
    return heads.reshape(B, L, H * d)
interleaved: I put the heads' elements side by side: channel i*H + h.
    B, H, L, d = heads.shape
    return heads.transpose(0, 2, 3, 1).reshape(B, L, d * H)
not-merged: I transpose and forget the reshape.
    return heads.transpose(0, 2, 1, 3)
mean: I average the heads.
    return heads.mean(axis=1)
concatenated-in-length: I concatenate along the wrong axis.
    return np.concatenate([heads[:, h] for h in range(heads.shape[1])], axis=1)
reversed: The last head comes first.
    B, H, L, d = heads.shape
    return heads[:, ::-1].transpose(0, 2, 1, 3).reshape(B, L, H * d)
swapped-far: I swap axes 1 and 3 instead of 1 and 2.
    B, H, L, d = heads.shape
    return heads.swapaxes(1, 3).reshape(B, L, H * d)
batch-and-length-mixed: I transpose length in front of the batch.
    B, H, L, d = heads.shape
    return heads.transpose(2, 0, 1, 3).reshape(B, L, H * d)
two-heads: I write it for two heads.
    return np.concatenate([heads[:, 0], heads[:, 1]], axis=-1)
right concatenate: The heads are concatenated, one by one.
    return np.concatenate(list(np.moveaxis(heads, 1, 0)), axis=-1)
right filled: An empty array is filled, head by head.
    B, H, L, d = heads.shape
    merged = np.empty((B, L, H * d))
    for h in range(H):
        merged[:, :, h * d:h * d + d] = heads[:, h]
    return merged
== scores(queries, keys, scale)
scale-forgotten: I do not scale.
    return queries @ keys.swapaxes(-1, -2)
scale-ignored: I always use 1 / sqrt(d), also if a scale is given.
    return queries @ keys.swapaxes(-1, -2) / np.sqrt(queries.shape[-1])
by-d: I divide by d, not by its root.
    return queries @ keys.swapaxes(-1, -2) * (1 / queries.shape[-1] if scale is None else scale)
by-embed-dim: I divide by the root of H * d.
    if scale is None:
        scale = 1 / np.sqrt(queries.shape[1] * queries.shape[-1])
    return queries @ keys.swapaxes(-1, -2) * scale
times-root: I multiply by the root.
    if scale is None:
        scale = np.sqrt(queries.shape[-1])
    return queries @ keys.swapaxes(-1, -2) * scale
zero-for-none: `scale or ...` takes a scale of 0 for None.
    scale = scale or 1 / np.sqrt(queries.shape[-1])
    return queries @ keys.swapaxes(-1, -2) * scale
divided-by-scale: I divide by the given scale.
    if scale is None:
        scale = np.sqrt(queries.shape[-1])
    return queries @ keys.swapaxes(-1, -2) / scale
both-scales: I apply 1 / sqrt(d) and the given scale too.
    s = queries @ keys.swapaxes(-1, -2) / np.sqrt(queries.shape[-1])
    return s if scale is None else s * scale
scaled-twice: I scale both the queries and the keys by the whole factor.
    if scale is None:
        scale = queries.shape[-1] ** -0.5
    return (queries * scale) @ (keys * scale).swapaxes(-1, -2)
keys-dot-t: keys.T turns all the axes round.
    if scale is None:
        scale = queries.shape[-1] ** -0.5
    return queries @ keys.T * scale
keys-against-queries: I return (Lk, Lq): keys by queries.
    if scale is None:
        scale = queries.shape[-1] ** -0.5
    return keys @ queries.swapaxes(-1, -2) * scale
sum-over-heads: Another letter in einsum sums over all key heads.
    if scale is None:
        scale = queries.shape[-1] ** -0.5
    return np.einsum("bhqd,bgkd->bhqk", queries, keys) * scale
by-key-len: I divide by the root of the number of keys.
    if scale is None:
        scale = 1 / np.sqrt(keys.shape[2])
    return queries @ keys.swapaxes(-1, -2) * scale
by-heads: I take the heads' axis for d.
    if scale is None:
        scale = 1 / np.sqrt(queries.shape[1])
    return queries @ keys.swapaxes(-1, -2) * scale
root-of-integers: I round the root to an integer.
    root = int(np.sqrt(queries.shape[-1]))
    return queries @ keys.swapaxes(-1, -2) * (1 / root if scale is None else scale)
cosine: I normalise queries and keys.
    q = queries / np.linalg.norm(queries, axis=-1, keepdims=True)
    k = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    return q @ k.swapaxes(-1, -2) * (queries.shape[-1] ** -0.5 if scale is None else scale)
keys-reshaped: I reshape the keys instead of transposing them.
    B, H, L, d = keys.shape
    return queries @ keys.reshape(B, H, d, L) * (d ** -0.5 if scale is None else scale)
softmax-too: I take the softmax already here.
    s = queries @ keys.swapaxes(-1, -2) * (queries.shape[-1] ** -0.5 if scale is None else scale)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
writes-queries: I scale the caller's queries in place.
    queries *= queries.shape[-1] ** -0.5 if scale is None else scale
    return queries @ keys.swapaxes(-1, -2)
returns-float32: I return float32, to save memory.
    s = queries @ keys.swapaxes(-1, -2) * (queries.shape[-1] ** -0.5 if scale is None else scale)
    return s.astype(np.float32)
right broadcast: A sum of products with broadcast axes.
    s = (queries[:, :, :, None, :] * keys[:, :, None, :, :]).sum(axis=-1)
    return s / np.sqrt(keys.shape[-1]) if scale is None else s * scale
right per-head-loop: A loop over items and heads.
    factor = 1 / np.sqrt(queries.shape[3]) if scale is None else scale
    return np.array([[q.dot(k.T) * factor for q, k in zip(qs, ks)] for qs, ks in zip(queries, keys)])
== softcap(scores, softcap)
not-multiplied: I forget to multiply by c.
    return scores if softcap is None else np.tanh(scores / softcap)
not-divided: I forget to divide by c.
    return scores if softcap is None else softcap * np.tanh(scores)
clipped: I clip at -c and c.
    return scores if softcap is None else np.clip(scores, -softcap, softcap)
none-divided: I divide by None.
    return softcap * np.tanh(scores / softcap)
nothing-for-none: Without a softcap my function ends without a return.
    if softcap is not None:
        return softcap * np.tanh(scores / softcap)
upside-down: I divide and multiply the wrong way round.
    return scores if softcap is None else np.tanh(scores * softcap) / softcap
absolute: I cap the absolute score.
    return scores if softcap is None else softcap * np.tanh(np.abs(scores) / softcap)
in-place: I write the result into the caller's scores.
    if softcap is not None:
        scores /= softcap
        np.tanh(scores, out=scores)
        scores *= softcap
    return scores
sigmoid: I use a sigmoid, which is tanh of the half.
    return scores if softcap is None else softcap * (2 / (1 + np.exp(-scores / softcap)) - 1)
fixed-cap: I write Gemma's 50 into the code.
    return scores if softcap is None else 50.0 * np.tanh(scores / 50.0)
right math-tanh: math.tanh, element by element.
    import math
    if softcap is None:
        return scores.copy()
    return np.vectorize(lambda s: softcap * math.tanh(s / softcap))(scores)
== weighted_sum(weights, values)
weights-transposed: I transpose the weights.
    return weights.swapaxes(-1, -2) @ values
elementwise: I multiply element by element.
    return weights * values
sum-over-heads: Another letter in einsum sums the values of all heads.
    return np.einsum("bhqk,bgkd->bhqd", weights, values)
heads-summed: I sum the heads too.
    return (weights @ values).sum(axis=1)
mean: I divide by the number of keys.
    return weights @ values / values.shape[2]
renormalised: I divide by the sum of the weights, and a row may be all 0.
    return weights @ values / weights.sum(-1, keepdims=True)
hardest: I take only the value of the key with the largest weight.
    return np.take_along_axis(values, weights.argmax(-1)[..., None], axis=2)
length-first: I return (B, Lq, H, dv).
    return (weights @ values).transpose(0, 2, 1, 3)
np-dot: np.dot of arrays with four axes pairs every item with every other.
    return np.dot(weights, values)
softmax-again: I take the softmax of the weights.
    e = np.exp(weights)
    return e / e.sum(-1, keepdims=True) @ values
first-head: I use the weights of the first head for every head.
    return weights[:, :1] @ values
returns-both: I return the weights too.
    return weights @ values, weights
right broadcast: A sum over a broadcast axis.
    return np.sum(weights[..., None] * values[:, :, None], axis=3)
== output(heads, weight, bias)
merge-without-transpose: I reshape the heads without a transpose.
    B, H, L, d = heads.shape
    y = heads.reshape(B, L, H * d) @ weight.T
    return y if bias is None else y + bias
interleaved: I merge the heads element by element.
    B, H, L, d = heads.shape
    y = heads.transpose(0, 2, 3, 1).reshape(B, L, H * d) @ weight.T
    return y if bias is None else y + bias
bias-forgotten: I forget the output bias.
    B, H, L, d = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(B, L, H * d) @ weight.T
bias-per-head: I project head by head and add the bias each time.
    H, d = heads.shape[1], heads.shape[3]
    bias = 0 if bias is None else bias
    return sum(heads[:, h] @ weight[:, h * d:h * d + d].T + bias for h in range(H))
weight-not-transposed: I multiply by W, not by W transposed.
    B, H, L, d = heads.shape
    y = heads.transpose(0, 2, 1, 3).reshape(B, L, H * d) @ weight
    return y if bias is None else y + bias
weight-reshaped: I reshape W to (H, dv, Do) instead of (Do, H, dv).
    B, H, L, d = heads.shape
    y = np.einsum("bhld,hdo->blo", heads, weight.reshape(H, d, -1))
    return y if bias is None else y + bias
not-projected: I merge and forget the projection.
    B, H, L, d = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(B, L, H * d)
none-added: I add None where there is no bias.
    B, H, L, d = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(B, L, H * d) @ weight.T + bias
bias-before: I add the bias before the projection.
    B, H, L, d = heads.shape
    merged = heads.transpose(0, 2, 1, 3).reshape(B, L, H * d)
    return merged @ weight.T if bias is None else (merged + bias) @ weight.T
reversed: The last head comes first.
    y = np.concatenate([heads[:, h] for h in range(heads.shape[1])][::-1], axis=-1) @ weight.T
    return y if bias is None else y + bias
mean-of-heads: I divide the sum of the heads' projections by H.
    B, H, L, d = heads.shape
    y = heads.transpose(0, 2, 1, 3).reshape(B, L, H * d) @ weight.T / H
    return y if bias is None else y + bias
right sum-of-heads: The sum of the heads' projections, by einsum.
    H, d = heads.shape[1], heads.shape[3]
    y = np.einsum("bhld,ohd->blo", heads, weight.reshape(-1, H, d))
    return y if bias is None else np.add(y, bias)
"""

ANSWERS = functions(TEXT)
