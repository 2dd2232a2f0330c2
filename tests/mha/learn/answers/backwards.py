"""Answers to the exercises of the track "backwards"."""

from tests.mha.learn.answers.form import functions

TEXT = """
== gradient_of_softmax(weights, d_weights, allowed)
row-sum-forgotten: I leave the row's sum out.
    return weights * d_weights
sum-not-weighted: I subtract the sum of d_weights, not weighted.
    return np.where(allowed, weights * (d_weights - d_weights.sum(-1, keepdims=True)), 0.0)
mean-subtracted: I subtract the mean of d_weights.
    return np.where(allowed, weights * (d_weights - d_weights.mean(-1, keepdims=True)), 0.0)
sign: My sign is the wrong way round.
    return np.where(allowed, weights * ((weights * d_weights).sum(-1, keepdims=True) - d_weights), 0.0)
over-queries: I sum over the queries.
    return np.where(allowed, weights * (d_weights - (weights * d_weights).sum(-2, keepdims=True)), 0.0)
one-sum: I sum the whole array.
    return np.where(allowed, weights * (d_weights - (weights * d_weights).sum()), 0.0)
keepdims-forgotten: I forget keepdims.
    return np.where(allowed, weights * (d_weights - (weights * d_weights).sum(-1)), 0.0)
diagonal-only: I use w (1 - w), the derivative of a sigmoid.
    return np.where(allowed, weights * (1 - weights) * d_weights, 0.0)
mask-inverted: I keep the gradient of the excluded keys.
    return np.where(allowed, 0.0, weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True)))
sum-not-multiplied: I forget to multiply the sum by the weights.
    return np.where(allowed, weights * d_weights - (weights * d_weights).sum(-1, keepdims=True), 0.0)
weights-squared: I multiply by the weights twice.
    return np.where(allowed, weights**2 * (d_weights - (weights * d_weights).sum(-1, keepdims=True)), 0.0)
weights-forgotten: I forget to multiply by the weights.
    return np.where(allowed, d_weights - (weights * d_weights).sum(-1, keepdims=True), 0.0)
straight-through: I hand the gradient on as it is.
    return np.where(allowed, d_weights, 0.0)
writes-gradient: I write into the caller's gradient.
    d_weights -= (weights * d_weights).sum(-1, keepdims=True)
    return np.where(allowed, weights * d_weights, 0.0)
over-heads: I sum over the heads.
    return np.where(allowed, weights * (d_weights - (weights * d_weights).sum(1, keepdims=True)), 0.0)
right jacobian: The whole Jacobian, diag(w) - w w^T.
    jacobian = np.eye(weights.shape[-1]) * weights[..., None] - weights[..., None] * weights[..., None, :]
    return np.where(allowed, np.einsum("bhqkj,bhqj->bhqk", jacobian, np.where(allowed, d_weights, 0.0)), 0.0)
right mask-unused: Excluded keys have weight 0, so the formula gives 0 there by itself.
    return weights * (d_weights - np.einsum("bhqk,bhqk->bhq", weights, d_weights)[..., None])
== gradient_of_scores(d_scores, queries, keys, scale)
order-swapped: I return the keys' gradient first.
    d = d_scores * scale
    return d.swapaxes(-1, -2) @ queries, d @ keys
scale-forgotten: I forget the scale.
    return d_scores @ keys, d_scores.swapaxes(-1, -2) @ queries
scale-on-queries-only: I scale the queries' gradient alone.
    return d_scores @ keys * scale, d_scores.swapaxes(-1, -2) @ queries
scale-on-keys-only: I scale the keys' gradient alone.
    return d_scores @ keys, d_scores.swapaxes(-1, -2) @ queries * scale
not-transposed: I do not transpose d_scores for the keys.
    return d_scores @ keys * scale, d_scores @ queries * scale
reshaped: I reshape d_scores instead of transposing it.
    B, H, Lq, Lk = d_scores.shape
    return d_scores @ keys * scale, d_scores.reshape(B, H, Lk, Lq) @ queries * scale
divided: I divide by the scale.
    return d_scores @ keys / scale, d_scores.swapaxes(-1, -2) @ queries / scale
scaled-twice: I apply the scale twice.
    return d_scores @ keys * scale**2, d_scores.swapaxes(-1, -2) @ queries * scale**2
queries-alone: I return the queries' gradient alone.
    return d_scores @ keys * scale
own-factor: Each gradient has its own input as a factor.
    return d_scores.sum(-1, keepdims=True) * queries * scale, d_scores.sum(-2)[..., None] * keys * scale
root-d: I use 1 / sqrt(d) for the scale.
    scale = queries.shape[-1] ** -0.5
    return d_scores @ keys * scale, d_scores.swapaxes(-1, -2) @ queries * scale
mean-over-batch: I divide by the batch.
    d = d_scores * scale / len(queries)
    return d @ keys, d.swapaxes(-1, -2) @ queries
right einsum: Two einsums.
    return (
        np.einsum("bhqk,bhkd->bhqd", d_scores, keys * scale),
        np.einsum("bhqk,bhqd->bhkd", d_scores, queries * scale),
    )
== gradient_of_groups(d_scores, queries, num_kv_heads, scale)
not-summed: I do not sum over a group: (B, H, Lk, d).
    return d_scores.swapaxes(-1, -2) @ queries * scale
mean: I average over a group.
    d = d_scores.swapaxes(-1, -2) @ queries * scale
    B, H, Lk, w = d.shape
    return d.reshape(B, num_kv_heads, -1, Lk, w).mean(axis=2)
tiled: I sum as if heads had been tiled.
    d = d_scores.swapaxes(-1, -2) @ queries * scale
    B, H, Lk, w = d.shape
    return d.reshape(B, H // num_kv_heads, num_kv_heads, Lk, w).sum(axis=1)
scale-forgotten: I forget the scale.
    d = d_scores.swapaxes(-1, -2) @ queries
    B, H, Lk, w = d.shape
    return d.reshape(B, num_kv_heads, H // num_kv_heads, Lk, w).sum(axis=2)
first-of-group: I take the gradient of the first query head of a group.
    d = d_scores.swapaxes(-1, -2) @ queries * scale
    return d[:, ::d.shape[1] // num_kv_heads]
last-of-group: My loop overwrites instead of adding.
    d = d_scores.swapaxes(-1, -2) @ queries * scale
    B, H, Lk, w = d.shape
    d_keys = np.zeros((B, num_kv_heads, Lk, w))
    for h in range(H):
        d_keys[:, h // (H // num_kv_heads)] = d[:, h]
    return d_keys
first-heads: I take the first G heads.
    return (d_scores.swapaxes(-1, -2) @ queries * scale)[:, :num_kv_heads]
summed-over-groups: I sum over the wrong axis, the groups.
    d = d_scores.swapaxes(-1, -2) @ queries * scale
    B, H, Lk, w = d.shape
    return d.reshape(B, num_kv_heads, H // num_kv_heads, Lk, w).sum(axis=1)
scale-twice: I scale queries and result.
    d = d_scores.swapaxes(-1, -2) @ (queries * scale) * scale
    B, H, Lk, w = d.shape
    return d.reshape(B, num_kv_heads, H // num_kv_heads, Lk, w).sum(axis=2)
not-transposed: I do not transpose d_scores.
    d = d_scores @ queries * scale
    B, H, Lk, w = d.shape
    return d.reshape(B, num_kv_heads, H // num_kv_heads, Lk, w).sum(axis=2)
summed-before: I sum scores and queries over the group, and multiply the sums.
    B, H, Lq, Lk = d_scores.shape
    s = d_scores.reshape(B, num_kv_heads, -1, Lq, Lk).sum(2)
    q = queries.reshape(B, num_kv_heads, -1, Lq, queries.shape[-1]).sum(2)
    return s.swapaxes(-1, -2) @ q * scale
all-heads-in-each: Every key head gets the sum of all query heads.
    d = (d_scores.swapaxes(-1, -2) @ queries * scale).sum(1, keepdims=True)
    return np.repeat(d, num_kv_heads, axis=1)
right reduceat: np.add.reduceat adds the heads of a group.
    d = d_scores.swapaxes(-1, -2) @ queries * scale
    return np.add.reduceat(d, np.arange(0, d.shape[1], d.shape[1] // num_kv_heads), axis=1)
right long-queries: The queries of a group are one long axis.
    B, H, Lq, Lk = d_scores.shape
    s = d_scores.reshape(B, num_kv_heads, -1, Lk)
    return scale * s.swapaxes(-1, -2) @ queries.reshape(B, num_kv_heads, -1, queries.shape[-1])
== gradient_of_projection(gradient, x)
transposed: I return the gradient of W transposed: (in, out).
    return np.einsum("bli,blo->io", x, gradient), gradient.sum((0, 1))
mean: I average over the positions.
    n = x.shape[0] * x.shape[1]
    return np.einsum("blo,bli->oi", gradient, x) / n, gradient.mean((0, 1))
mean-over-batch: I divide by the batch.
    return np.einsum("blo,bli->oi", gradient, x) / len(x), gradient.sum((0, 1)) / len(x)
bias-not-summed-over-length: I sum the bias over the batch alone.
    return np.einsum("blo,bli->oi", gradient, x), gradient.sum(0)
bias-mean: I average the gradient of the bias.
    return np.einsum("blo,bli->oi", gradient, x), gradient.mean((0, 1))
batch-left: I do not sum over the batch.
    return gradient.swapaxes(1, 2) @ x, gradient.sum(1)
first-item: I use the first item alone.
    return gradient[0].T @ x[0], gradient[0].sum(0)
bias-of-ones: I think the gradient of the bias is 1.
    return np.einsum("blo,bli->oi", gradient, x), np.ones(gradient.shape[-1])
product-of-sums: I multiply sums instead of summing products.
    return np.outer(gradient.sum((0, 1)), x.sum((0, 1))), gradient.sum((0, 1))
reshaped: I reshape to (out, B * L) instead of transposing.
    out = gradient.shape[-1]
    return gradient.reshape(out, -1) @ x.reshape(-1, x.shape[-1]), gradient.sum((0, 1))
bias-keeps-axes: My bias has shape (1, 1, out).
    return np.einsum("blo,bli->oi", gradient, x), gradient.sum((0, 1), keepdims=True)
bias-forgotten: I return the weight's gradient alone.
    return np.einsum("blo,bli->oi", gradient, x)
order-swapped: I return the bias first.
    return gradient.sum((0, 1)), np.einsum("blo,bli->oi", gradient, x)
right outer-loop: A sum of outer products, position by position.
    d_weight = np.zeros((gradient.shape[-1], x.shape[-1]))
    for g, row in zip(gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])):
        d_weight += np.outer(g, row)
    return d_weight, np.ones(gradient.shape[0] * gradient.shape[1]) @ gradient.reshape(-1, gradient.shape[-1])
"""

ANSWERS = functions(TEXT)
