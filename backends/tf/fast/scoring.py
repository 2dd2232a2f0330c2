"""Scores and their gradients, block by block: what the fast path computes again instead of keeping it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from backends.tf.ops.additive import AdditiveScore
from backends.tf.ops.attention import add_bias, additive_score, cap, dot_score
from backends.tf.ops.heads import fold_groups, unfold_groups


class Scoring(NamedTuple):
    """How queries and keys come to scores.

    function: queries (B, G, n, width), keys (B, G, m, width) and the parameters -> (B, G, n, m).
    derivatives: the gradient of those scores, queries, keys and parameters -> the gradients of these.
    query, key: what makes those of queries and keys (B, H or G, L, d) first, all at once.
    parameters: tensors that get a gradient too.
    size: numbers that it holds for each score.
    softcap: what the scores are capped at, or None.
    """

    function: Callable[..., tf.Tensor]
    derivatives: Callable[..., tuple[tf.Tensor, ...]]
    query: Callable[[tf.Tensor], tf.Tensor] = tf.identity
    key: Callable[[tf.Tensor], tf.Tensor] = tf.identity
    parameters: tuple[tf.Tensor, ...] = ()
    size: int = 1
    softcap: float | None = None

    def before_bias(self, queries: tf.Tensor, keys: tf.Tensor, *parameters: tf.Tensor) -> tf.Tensor:
        """(B, H, n, m) of queries (B, H, n, width), keys (B, G, m, width) and the parameters."""
        scores = self.function(fold_groups(queries, keys.shape[1]), keys, *parameters)
        return unfold_groups(cap(scores, self.softcap), queries.shape[1])

    def gradients(
        self, d_scores: tf.Tensor, scores: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, *parameters: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """The gradients of queries, keys and parameters from that of `scores`, which `before_bias` gave."""
        if self.softcap is not None:
            d_scores *= 1.0 - (scores / self.softcap) ** 2
        folded = (fold_groups(x, keys.shape[1]) for x in (d_scores, queries))
        d_queries, *others = self.derivatives(*folded, keys, *parameters)
        return unfold_groups(d_queries, queries.shape[1]), *others


def dot_scoring(scale: float | tf.Tensor) -> Scoring:
    """q.k * scale."""

    def derivatives(d_scores: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tf.matmul(d_scores, keys) * scale, tf.matmul(d_scores, queries * scale, transpose_a=True)

    return Scoring(partial(dot_score, scale=scale), derivatives)


def additive_scoring(score: AdditiveScore, dtype: tf.DType) -> Scoring:
    """Additive scores, w . tanh(A q + C k), computed in `dtype`."""

    def derivatives(
        d_scores: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, vector: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        hidden = tf.tanh(queries[:, :, :, tf.newaxis] + keys[:, :, tf.newaxis])
        d_inside = d_scores[..., tf.newaxis] * (vector * (1.0 - hidden**2))
        d_vector = tf.tensordot(d_scores, hidden, axes=4)
        return tf.reduce_sum(d_inside, axis=3), tf.reduce_sum(d_inside, axis=2), d_vector

    vector = tf.cast(score.vector, dtype)
    return Scoring(additive_score, derivatives, score.query, score.key, (vector,), size=score.score_dim)


def bias_gradient(d_scores: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """The gradient of an additive bias from that of the scores that it was added to, (B, H, n, m)."""
    axes: Sequence[int] = [axis for axis in range(4) if bias.shape[axis] == 1]
    summed = tf.reduce_sum(d_scores, axis=axes, keepdims=True) if axes else d_scores
    return tf.where(tf.equal(bias, -float("inf")), tf.zeros((), bias.dtype), summed)


def biased(scores: tf.Tensor, bias: Sequence[tf.Tensor]) -> tf.Tensor:
    """The scores with the bias, of which there may be none."""
    return add_bias(scores, bias[0]) if bias else scores
