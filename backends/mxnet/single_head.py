"""Attention without heads and without projections as Gluon blocks, one for each score."""

from typing import Any

from backends.mxnet.fast.attend import attend_in_blocks
from backends.mxnet.ops.attention import add_bias, drop, masked_softmax, weighted_sum, zero_padding
from backends.mxnet.ops.framework import KeywordBlock, in_width, mx
from backends.mxnet.ops.masks import Mask, Window, build_mask, expected_dtype, placed
from backends.mxnet.ops.scores import AdditiveScore, DotScore
from mha_core.call.blocks import Operands
from mha_core.call.call import Call, LayerSpec, Widths
from mha_core.call.checks import check_dropout_keep, check_same_width
from mha_core.call.masks import AttentionMask
from mha_core.config import check_size
from mha_core.dtypes import check_dropout


@mx.util.use_np
class _AttentionWithoutHeads(KeywordBlock):
    """Base of DotProductAttention and AdditiveAttention, which define the score. The stages see one head."""

    def __init__(self, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = check_dropout(dropout)

    def _project(self, call: Call[mx.np.ndarray], mask: Mask) -> tuple[mx.np.ndarray, mx.np.ndarray, mx.np.ndarray]:
        """Queries (B, 1, Lq, Dq), keys (B, 1, Lk, Dk) and values (B, 1, Lk, Dv), as they are: nothing projects them."""
        queries = call.queries[:, None]  # (B, 1, Lq, Dq)
        keys = zero_padding(call.keys, mask)[:, None]  # (B, 1, Lk, Dk)
        values = zero_padding(call.values, mask)[:, None]  # (B, 1, Lk, Dv)
        return queries, keys, values

    def forward(
        self,
        queries: mx.np.ndarray,
        keys: mx.np.ndarray,
        values: mx.np.ndarray,
        valid_lens: Any = None,
        *,
        allowed: Any = None,
        bias: Any = None,
        causal: bool = False,
        query_offset: Any = 0,
        window: Window | None = None,
        dropout_keep: Any = None,
        return_weights: bool = False,
    ) -> mx.np.ndarray | tuple[mx.np.ndarray, mx.np.ndarray]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        The arguments are those of `MultiHeadAttention.forward`, with weights (B, Lq, Lk): `allowed`
        and `bias` broadcast to that shape, and `dropout_keep` has it.

        Returns:
            The output (B, Lq, Dv), or the pair (output, weights).
        """
        sources = AttentionMask(valid_lens, allowed, bias, causal, query_offset, window)
        call = self._placed(Call(queries, keys, values, sources, dropout_keep))
        mask = build_mask(call, self._spec())
        queries, keys, values = self._project(call, mask)  # (B, 1, Lq, Dq), (B, 1, Lk, Dk), (B, 1, Lk, Dv)
        score = self._score(queries, keys)
        if not return_weights:
            operands = Operands(*score.operands(queries, (keys,)), (values,))
            return attend_in_blocks(operands, score.in_blocks(), mask, self.dropout, mx.autograd.is_training())[:, 0]
        scores = add_bias(score(queries, keys), mask)  # (B, 1, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, 1, Lq, Lk)
        kept = drop(weights, mask, self.dropout, mx.autograd.is_training())  # (B, 1, Lq, Lk)
        heads = weighted_sum(kept, values)  # (B, 1, Lq, Dv)
        return heads[:, 0], weights[:, 0]

    def _placed(self, call: Call[Any]) -> Call[Any]:
        """The call in arrays of MXNet, as of one head; SpecError for a keep-mask outside training."""
        call = placed(call, self).for_one_head(lambda array: array[:, None])
        check_dropout_keep(call.dropout_keep, training=mx.autograd.is_training())
        return call

    def _spec(self) -> LayerSpec:
        """The widths and the dtype of the parameters: `check_call` checks every call against them."""
        return LayerSpec(widths=self._widths(), dtype=expected_dtype(self))

    def _widths(self) -> Widths:
        """(Dq, Dk, Dv); None for a width that may be any, or that the first call decides."""
        return None, None, None

    def _score(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> DotScore | AdditiveScore:
        """The score of queries (B, 1, Lq, Dq) and keys (B, 1, Lk, Dk); SpecError for widths that it does not take."""
        raise NotImplementedError  # each subclass has its own


@mx.util.use_np
class DotProductAttention(_AttentionWithoutHeads):
    """A layer that returns softmax(q.k * scale) v, without projections and heads.

    Args:
        dropout: probability that a weight is dropped in training.
        scaled: True for scale = 1 / sqrt(d), False for 1.

    >>> import mxnet as mx
    >>> attention = DotProductAttention()
    >>> random = mx.np.random.normal
    >>> attention(random(size=(2, 4, 3)), random(size=(2, 6, 3)), random(size=(2, 6, 5))).shape
    (2, 4, 5)
    """

    def __init__(self, dropout: float = 0.0, scaled: bool = True, **kwargs: Any) -> None:
        super().__init__(dropout, **kwargs)
        self.scaled = scaled

    def _score(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> DotScore:
        check_same_width(queries.shape[-1], keys.shape[-1])
        return DotScore(queries.shape[-1] ** -0.5 if self.scaled else 1.0)


@mx.util.use_np
class AdditiveAttention(_AttentionWithoutHeads):
    """A layer that returns softmax(w . tanh(A q + C k)) v; queries and keys may differ in width (arXiv:1409.0473).

    Args:
        score_dim: S, the width of the hidden layer.
        dropout: probability that a weight is dropped in training.
        query_dim, key_dim: input widths. None: the first call decides.
        dtype: the dtype of the parameters.

    >>> import mxnet as mx
    >>> attention = AdditiveAttention(8)
    >>> attention.initialize()
    >>> random = mx.np.random.normal
    >>> attention(random(size=(2, 4, 20)), random(size=(2, 6, 3)), random(size=(2, 6, 5))).shape
    (2, 4, 5)
    """

    def __init__(
        self,
        score_dim: int,
        dropout: float = 0.0,
        *,
        query_dim: int | None = None,
        key_dim: int | None = None,
        dtype: Any = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout, **kwargs)
        with self.name_scope():
            size = check_size("score_dim", score_dim)
            self.score = AdditiveScore(query_dim, key_dim, size, dtype=dtype, prefix="score_")

    def _score(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> AdditiveScore:
        return self.score

    def _widths(self) -> Widths:
        return in_width(self.score.query), in_width(self.score.key), None
