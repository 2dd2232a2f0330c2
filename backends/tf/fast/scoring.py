"""Scores and their gradients, block by block: what the fast path computes again instead of keeping it.

Shapes as in `mha_core.call.blocks.Operands`, of a block of n queries and m keys: queries (B, H, n, d), keys
(B, G, m, d); d is S for the additive score.
"""

import tensorflow as tf

from backends.tf.fast.floats import Floats
from backends.tf.ops.attention import Score, additive_score, cap, cap_gradient, dot_score
from backends.tf.ops.framework import is_traced_for_xla
from backends.tf.ops.heads import fold_groups, unfold_groups
from backends.tf.ops.products import matmul, widened

LARGEST_SCALE = 1e9
"""The largest scale of a dot product whose scores are bounded by the norms of queries and keys."""


def similarity(queries: tf.Tensor, keys: tf.Tensor, score: Score) -> tf.Tensor:
    """Return the scores (B, H, n, m) after softcap, before bias. Keys are not copied for the heads that share them."""
    folded = fold_groups(queries, keys.shape[1])
    if score.vector is None:
        scores = dot_score(folded, keys, score.scale)
    else:
        scores = additive_score(folded, keys, score.vector)
    return unfold_groups(cap(scores, score), queries.shape[1])


def doubtful_scores(floats: Floats, score: Score) -> tf.Tensor | None:
    """Return a bool tensor: False if all scores are finite, True if one may not be. None: the test can't be used.

    The test: all scores are finite if the sums of squares of queries, keys and vector have a finite product.
    """
    given = [x for x in (floats.queries, floats.keys, floats.vector) if x is not None]
    if not _fewer_numbers(floats) or floats.bias is not None or is_traced_for_xla() or abs(score.scale) > LARGEST_SCALE:
        return None
    squares = [tf.nn.l2_loss(widened(x)) for x in given]
    return ~tf.math.is_finite(tf.reduce_prod(tf.stack(squares)))


def _fewer_numbers(floats: Floats) -> bool:
    """Return whether queries and keys are known to have fewer numbers than there are scores."""
    heads, query_len, width = floats.queries.shape[1:]
    kv_heads, key_len, _ = floats.keys.shape[1:]
    if query_len is None or key_len is None:
        return False
    return bool(heads * query_len * key_len > (heads * query_len + kv_heads * key_len) * width)


def similarity_gradients(
    d_scores: tf.Tensor, scores: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, score: Score
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Return the gradients of queries, keys and `score.vector`, given `d_scores`, the gradient of `scores`.

    `scores` is what `similarity` returned. The third gradient is None for a dot product.
    """
    d_scores = cap_gradient(d_scores, scores, score)
    d_folded, folded = (fold_groups(x, keys.shape[1]) for x in (d_scores, queries))
    if score.vector is None:
        d_queries = matmul(d_folded, keys) * score.scale
        d_keys, d_vector = matmul(d_folded, folded * score.scale, transpose_a=True), None
    else:
        hidden = tf.tanh(folded[:, :, :, tf.newaxis] + keys[:, :, tf.newaxis])
        d_inside = d_folded[..., tf.newaxis] * (score.vector * (1.0 - hidden**2))
        d_vector = tf.tensordot(d_folded, hidden, axes=4)
        d_queries, d_keys = tf.reduce_sum(d_inside, axis=3), tf.reduce_sum(d_inside, axis=2)
    return unfold_groups(d_queries, queries.shape[1]), d_keys, d_vector


def bias_gradient(d_scores: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Return the gradient of an additive bias from `d_scores` (B, H, n, m), the gradient of the biased scores."""
    axes = [axis for axis in range(4) if bias.shape[axis] == 1]
    summed = tf.reduce_sum(d_scores, axis=axes, keepdims=True) if axes else d_scores
    return tf.where(tf.equal(bias, -float("inf")), tf.zeros((), bias.dtype), summed)


def product(x: tf.Tensor, values: tf.Tensor, *, transpose: bool = False) -> tf.Tensor:
    """Return x (B, H, n, m) @ values (B, G, m, dv). H / G heads share a head of values. `transpose`: x @ values^T."""
    return unfold_groups(matmul(fold_groups(x, values.shape[1]), values, transpose_b=transpose), x.shape[1])
