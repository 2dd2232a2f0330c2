"""Attention without heads and without projections as Keras layers, one for each score."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from backends.tf.fast.attend import attend_in_blocks
from backends.tf.fast.scoring import Scoring, additive_scoring, dot_scoring
from backends.tf.layers import AttentionLayer
from backends.tf.ops.additive import AdditiveScore
from backends.tf.ops.attention import add_bias, dot_score, drop, masked_softmax, weighted_sum, zero_padding
from backends.tf.ops.framework import as_tensor, spec_errors_kept
from backends.tf.ops.masks import Shape, allowed_keys, as_tensors, build_mask, input_widths
from mha_core.call.arguments import settled
from mha_core.call.checks import check_dropout_keep, check_same_width
from mha_core.call.masks import keep_for_one_head
from mha_core.config import check_size
from mha_core.errors import SpecError


def _insert_head(array: Any) -> Any:
    """(B, ...) -> (B, 1, ...); of what is to be refused, an array of NumPy, too."""
    return array[:, None]


class _AttentionWithoutHeads(AttentionLayer):
    """What DotProductAttention and AdditiveAttention share: everything but the score."""

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """(B, 1, Lq, width), (B, 1, Lk, width) -> (B, 1, Lq, Lk)."""
        raise NotImplementedError  # each subclass has its own

    def _scoring(self, queries: tf.Tensor, keys: tf.Tensor) -> Scoring:
        """The same as `_score`, for blocks."""
        raise NotImplementedError  # each subclass has its own

    def _attend(self, queries, keys, values, sources, dropout_keep, past, training, return_weights, return_present):
        sources = as_tensors(sources, queries).for_one_head(_insert_head)
        keep = keep_for_one_head(as_tensor(settled("dropout_keep", dropout_keep)), _insert_head)
        check_dropout_keep(keep, training=training)
        dtype = self.compute_dtype if self.weights else None
        mask = build_mask(queries, keys, values, sources, keep, *past, num_heads=1, widths=self._widths, dtype=dtype)
        if return_present:
            raise SpecError("return_present needs a layer with heads; this one has none.")
        q = _insert_head(queries)  # (B, 1, Lq, Dq)
        k, v = (_insert_head(zero_padding(x, mask)) for x in (keys, values))  # (B, 1, Lk, Dk), (B, 1, Lk, Dv)
        if not return_weights:
            scoring = self._scoring(q, k)
            return (attend_in_blocks(q, k, v, (None, None), scoring, mask, self.dropout, training)[:, 0],)
        scores = add_bias(self._score(q, k), mask.bias)  # (B, 1, Lq, Lk)
        weights = masked_softmax(scores, allowed_keys(mask))  # (B, 1, Lq, Lk)
        heads = weighted_sum(drop(weights, mask, self.dropout, training), v)  # (B, 1, Lq, Dv)
        return heads[:, 0], weights[:, 0]


@keras.saving.register_keras_serializable(package="mha")
class DotProductAttention(_AttentionWithoutHeads):
    """softmax(q.k * scale) v, without projections and heads, in the dtype of its inputs.

    Args:
        dropout: probability that a weight is dropped in training.
        scaled: True for scale = 1 / sqrt(d), False for 1.
        **kwargs: of every Keras layer.

    >>> import tensorflow as tf
    >>> attention = DotProductAttention()
    >>> attention(tf.zeros((2, 4, 3)), tf.zeros((2, 6, 3)), tf.zeros((2, 6, 5))).shape
    TensorShape([2, 4, 5])
    """

    def __init__(self, dropout: float = 0.0, scaled: bool = True, **kwargs: Any) -> None:
        super().__init__(dropout, **kwargs)
        self.scaled = scaled

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dropout": self.dropout.rate, "scaled": self.scaled}

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        return dot_score(queries, keys, self._scale(queries, keys))

    def _scoring(self, queries: tf.Tensor, keys: tf.Tensor) -> Scoring:
        scale = self._scale(queries, keys)
        return dot_scoring(1.0)._replace(query=lambda x: x * scale)

    def _scale(self, queries: tf.Tensor, keys: tf.Tensor) -> float | tf.Tensor:
        check_same_width(queries.shape[-1], keys.shape[-1])
        width = tf.cast(tf.shape(queries)[-1], tf.float64)  # tracing may not know it as a number
        return tf.cast(width**-0.5, queries.dtype) if self.scaled else 1.0


@keras.saving.register_keras_serializable(package="mha")
class AdditiveAttention(_AttentionWithoutHeads):
    """softmax(w . tanh(A q + C k)) v, for queries and keys of any two widths (arXiv:1409.0473).

    Args:
        score_dim: S, the width of the hidden layer.
        dropout: probability that a weight is dropped in training.
        query_dim, key_dim: input widths. None: the first call decides.
        **kwargs: of every Keras layer.

    >>> import tensorflow as tf
    >>> attention = AdditiveAttention(8)
    >>> attention(tf.zeros((2, 4, 20)), tf.zeros((2, 6, 3)), tf.zeros((2, 6, 5))).shape
    TensorShape([2, 4, 5])
    """

    def __init__(
        self,
        score_dim: int,
        dropout: float = 0.0,
        *,
        query_dim: int | None = None,
        key_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout, (query_dim, key_dim, None), **kwargs)
        self.score = AdditiveScore(check_size("score_dim", score_dim), name="score", dtype=self.dtype_policy)

    @spec_errors_kept()
    def build(self, queries_shape: Shape = None, keys_shape: Shape = None, values_shape: Shape = None) -> None:
        """Make the parameters for inputs of these shapes; Keras calls this before the first call."""
        self._widths = input_widths(queries_shape, keys_shape, values_shape, self._given_widths)
        self.score.build((None, None, None, self._widths[0]), (None, None, None, self._widths[1]))

    def get_config(self) -> dict[str, Any]:
        widths = dict(zip(("query_dim", "key_dim"), self._given_widths[:2], strict=True))
        return {**super().get_config(), "score_dim": self.score.score_dim, "dropout": self.dropout.rate, **widths}

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        return self.score(queries, keys)

    def _scoring(self, queries: tf.Tensor, keys: tf.Tensor) -> Scoring:
        return additive_scoring(self.score, queries.dtype)
