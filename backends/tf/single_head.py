"""Attention without heads and without projections as Keras layers, one for each score."""

from typing import Any

import keras
import tensorflow as tf

from backends.tf.fast.attend import attend_in_blocks
from backends.tf.ops.attention import Score, add_bias, drop, masked_softmax, weighted_sum, zero_padding
from backends.tf.ops.framework import Shape, spec_errors_kept
from backends.tf.ops.layer import AttentionLayer, input_widths
from backends.tf.ops.masks import Mask, Window, build_mask
from backends.tf.ops.scores import AdditiveScore, DotScore
from mha_core import AttentionMask, SpecError
from mha_core.call.blocks import Operands
from mha_core.call.call import Call, LayerSpec
from mha_core.call.checks import check_same_width
from mha_core.config import check_size


class _AttentionWithoutHeads(AttentionLayer):
    """Base of DotProductAttention and AdditiveAttention, which define the score. The stages see one head."""

    def _project(self, call: Call[tf.Tensor], mask: Mask) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Queries (B, 1, Lq, Dq), keys (B, 1, Lk, Dk) and values (B, 1, Lk, Dv), as they are: nothing projects them."""
        queries = call.queries[:, None]  # (B, 1, Lq, Dq)
        keys = zero_padding(call.keys, mask)[:, None]  # (B, 1, Lk, Dk)
        values = zero_padding(call.values, mask)[:, None]  # (B, 1, Lk, Dv)
        return queries, keys, values

    @spec_errors_kept()
    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        *,
        allowed: tf.Tensor | None = None,
        bias: tf.Tensor | None = None,
        causal: bool = False,
        query_offset: int | tf.Tensor = 0,
        window: Window | None = None,
        dropout_keep: tf.Tensor | None = None,
        past_keys: tf.Tensor | None = None,
        past_values: tf.Tensor | None = None,
        return_weights: bool = False,
        return_present: bool = False,
        training: bool | None = None,
    ) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        The arguments are those of `MultiHeadAttention.call`, with weights (B, Lq, Lk): `allowed` and `bias` broadcast
        to that shape, and `dropout_keep` has it. A past and a present are heads, and refused.

        Returns:
            The output (B, Lq, Dv), or the pair (output, weights).

        Raises:
            SpecError: before any arithmetic, naming what does not fit.
        """
        sources = AttentionMask(valid_lens, allowed, bias, causal, query_offset, window)
        call = self._in_tensors(Call(queries, keys, values, sources, dropout_keep, past_keys, past_values), training)
        mask = build_mask(call, self._spec())
        if return_present:
            raise SpecError("return_present needs a layer with heads; this one has none.")
        queries, keys, values = self._project(call, mask)  # (B, 1, Lq, Dq), (B, 1, Lk, Dk), (B, 1, Lk, Dv)
        score = self._score(queries, keys)
        if not return_weights:
            operands = Operands(*score.operands(queries, (keys,)), (values,))
            return attend_in_blocks(operands, score.in_blocks(), mask, self.dropout, bool(training))[:, 0]
        scores = add_bias(score(queries, keys), mask)  # (B, 1, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, 1, Lq, Lk)
        kept = drop(weights, mask, self.dropout, bool(training))  # (B, 1, Lq, Lk)
        heads = weighted_sum(kept, values)  # (B, 1, Lq, Dv)
        return heads[:, 0], weights[:, 0]

    def _in_tensors(self, call: Call[Any], training: bool | None) -> Call[Any]:
        """The call in tensors, as of one head; SpecError for a keep-mask outside training."""
        return super()._in_tensors(call, training).for_one_head(lambda array: array[:, None])

    def _spec(self) -> LayerSpec:
        """The widths and the dtype of the parameters: `check_call` checks every call against them."""
        return LayerSpec(widths=self._widths, dtype=self._dtype())

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> DotScore | AdditiveScore:
        """The score of queries (B, 1, Lq, Dq) and keys (B, 1, Lk, Dk); SpecError for widths that it does not take."""
        raise NotImplementedError  # each subclass has its own


class _DotScoreOfInputs(DotScore):
    """A dot product of which the inputs' dtype holds the scale, so that the queries meet it in that dtype."""

    def operands(self, queries: tf.Tensor, keys: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        return queries * self.scale, keys  # as the stages scale them; blocks compute in a wider dtype

    def in_blocks(self) -> Score:
        return Score()


@keras.saving.register_keras_serializable(package="mha")
class DotProductAttention(_AttentionWithoutHeads):
    """A layer that returns softmax(q.k * scale) v, without projections and heads, in the dtype of its inputs.

    Args:
        dropout: probability that a weight is dropped in training.
        scaled: True for scale = 1 / sqrt(d), False for 1.
        **kwargs: the keywords of every Keras layer.

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

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> DotScore:
        check_same_width(queries.shape[-1], keys.shape[-1])
        width = tf.cast(tf.shape(queries)[-1], tf.float64)  # tracing may not know it as a number
        return _DotScoreOfInputs(tf.cast(width**-0.5, queries.dtype) if self.scaled else 1.0)


@keras.saving.register_keras_serializable(package="mha")
class AdditiveAttention(_AttentionWithoutHeads):
    """A layer that returns softmax(w . tanh(A q + C k)) v; queries and keys may differ in width (arXiv:1409.0473).

    Args:
        score_dim: S, the width of the hidden layer.
        dropout: probability that a weight is dropped in training.
        query_dim, key_dim: input widths. None: the first call decides.
        **kwargs: the keywords of every Keras layer.

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

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> AdditiveScore:
        return self.score
