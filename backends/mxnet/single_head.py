"""Attention without heads and without projections as Gluon blocks, one for each score."""

from __future__ import annotations

from typing import Any

from backends.mxnet.fast.attend import attend_in_blocks
from backends.mxnet.fast.block import Scoring
from backends.mxnet.ops.additive import AdditiveScore
from backends.mxnet.ops.attention import add_bias, dot_score, drop, masked_softmax, weighted_sum, zero_padding
from backends.mxnet.ops.framework import KeywordBlock, as_mxnet, context_of_call, in_width, mx
from backends.mxnet.ops.masks import build_mask, sources_of
from mha_core.call.arguments import settled
from mha_core.call.checks import check_dropout_keep, check_same_width
from mha_core.call.masks import AttentionMask, keep_for_one_head
from mha_core.config import check_dropout, check_size


@mx.util.use_np
class _AttentionWithoutHeads(KeywordBlock):
    """What DotProductAttention and AdditiveAttention share: everything but the score."""

    def __init__(self, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = check_dropout(dropout)

    def _score(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> mx.np.ndarray:
        """(B, 1, Lq, width), (B, 1, Lk, width) -> (B, 1, Lq, Lk)."""
        raise NotImplementedError  # each subclass has its own

    def _scored(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> tuple[mx.np.ndarray, list[mx.np.ndarray]]:
        """Queries and keys as `attend_in_blocks` takes them: scaled, or as wide as the additive score is."""
        raise NotImplementedError  # each subclass has its own

    def _scoring(self) -> Scoring:
        return Scoring()

    def _expected(self) -> dict[str, Any]:
        """The `widths` and `layer_dtype` that `build_mask` expects of the inputs, where they are fixed."""
        return {}

    def forward(
        self,
        queries: mx.np.ndarray,
        keys: mx.np.ndarray,
        values: mx.np.ndarray,
        valid_lens: Any = None,
        *,
        dropout_keep: Any = None,
        return_weights: bool = False,
        **sources: Any,
    ) -> mx.np.ndarray | tuple[mx.np.ndarray, mx.np.ndarray]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        The arguments are those of `MultiHeadAttention.forward`, with weights (B, Lq, Lk): `allowed`
        and `bias` broadcast to that shape, and `dropout_keep` has it.

        Returns:
            The output (B, Lq, Dv), or the pair (output, weights).
        """
        ctx = context_of_call(self, queries, keys, values)
        queries, keys, values = (as_mxnet(array, ctx) for array in (queries, keys, values))
        mask = sources_of(queries, ctx, AttentionMask(valid_lens, **sources))
        mask = mask.for_one_head(lambda array: array[:, None])
        keep = as_mxnet(settled("dropout_keep", dropout_keep), ctx)
        keep = keep_for_one_head(keep, lambda array: array[:, None])
        check_dropout_keep(keep, training=mx.autograd.is_training())
        mask = build_mask(queries, keys, values, mask, keep, num_heads=1, **self._expected())
        keys, values = zero_padding(keys, mask), zero_padding(values, mask)
        if not return_weights:
            scored = self._scored(queries[:, None], keys[:, None])
            return attend_in_blocks(*scored, [values[:, None]], mask, self._scoring(), self.dropout)[:, 0]
        scores = add_bias(self._score(queries[:, None], keys[:, None]), mask)  # (B, 1, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, 1, Lq, Lk)
        heads = weighted_sum(drop(weights, mask.keep, self.dropout), values[:, None])  # (B, 1, Lq, Dv)
        return heads[:, 0], weights[:, 0]


@mx.util.use_np
class DotProductAttention(_AttentionWithoutHeads):
    """softmax(q.k * scale) v, without projections and heads.

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

    def _score(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> mx.np.ndarray:
        return dot_score(queries, keys, self._scale(queries, keys))

    def _scored(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> tuple[mx.np.ndarray, list[mx.np.ndarray]]:
        return queries * self._scale(queries, keys), [keys]

    def _scale(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> float:
        check_same_width(queries.shape[-1], keys.shape[-1])
        return queries.shape[-1] ** -0.5 if self.scaled else 1.0


@mx.util.use_np
class AdditiveAttention(_AttentionWithoutHeads):
    """softmax(w . tanh(A q + C k)) v, for queries and keys of any two widths (arXiv:1409.0473).

    Args:
        score_dim: S, the width of the hidden layer.
        dropout: probability that a weight is dropped in training.
        query_dim, key_dim: input widths. None: the first call decides.
        dtype: of the parameters.

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

    def _score(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> mx.np.ndarray:
        return self.score(queries, keys)

    def _scored(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> tuple[mx.np.ndarray, list[mx.np.ndarray]]:
        return self.score.query(queries), [self.score.key(keys)]

    def _scoring(self) -> Scoring:
        return Scoring(self.score.vector.data())

    def _expected(self) -> dict[str, Any]:
        widths = in_width(self.score.query), in_width(self.score.key), None
        return {"widths": widths, "layer_dtype": self.score.vector.dtype}
