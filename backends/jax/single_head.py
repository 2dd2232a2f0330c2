"""Attention without heads and without projections as Flax linen modules, one for each score."""

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from flax.typing import Dtype, PrecisionLike
from jax import Array
from jax.typing import ArrayLike

from backends.jax.fast.attend import attend_in_blocks
from backends.jax.ops.attention import add_bias, drop, masked_softmax, weighted_sum, zero_padding
from backends.jax.ops.framework import any_rank, check_fields, in_width, layer_dtype
from backends.jax.ops.masks import Window, build_mask, placed
from backends.jax.ops.scores import AdditiveScore, DotScore
from mha_core.call.blocks import Operands
from mha_core.call.call import Call, LayerSpec, Widths
from mha_core.call.checks import check_dropout_keep, check_same_width
from mha_core.call.masks import AttentionMask
from mha_core.config import check_size
from mha_core.dtypes import check_dropout


class _AttentionWithoutHeads(nn.Module):
    """Base of DotProductAttention and AdditiveAttention, which define the score and the fields."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_dropout(self.dropout)
        super().__post_init__()

    def _score(self, queries: Array, keys: Array) -> DotScore | AdditiveScore:
        """The score of queries (B, 1, Lq, Dq) and keys (B, 1, Lk, Dk); SpecError for widths that it does not take."""
        raise NotImplementedError  # each subclass has its own

    def _widths(self, variables: Mapping[str, Any]) -> Widths:
        """(Dq, Dk, Dv); None for a width that may be any, or that the first call decides."""
        return None, None, None

    @nn.compact
    @any_rank
    def __call__(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        valid_lens: ArrayLike | None = None,
        *,
        allowed: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        causal: bool = False,
        query_offset: int | ArrayLike = 0,
        window: Window | None = None,
        dropout_keep: ArrayLike | None = None,
        return_weights: bool = False,
        deterministic: bool = True,
    ) -> Array | tuple[Array, Array]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        The arguments are those of `MultiHeadAttention.__call__`, with weights (B, Lq, Lk): `allowed`
        and `bias` broadcast to that shape, and `dropout_keep` has it.

        Returns:
            The output (B, Lq, Dv), or the pair (output, weights).
        """
        given = AttentionMask(valid_lens, allowed, bias, causal, query_offset, window)
        call = placed(Call(queries, keys, values, given, dropout_keep), self).for_one_head(lambda x: x[:, None])
        training = not deterministic
        check_dropout_keep(call.dropout_keep, training=training)
        mask = build_mask(call, LayerSpec(widths=self._widths(self.variables), dtype=layer_dtype(self)))
        inputs = call.queries, zero_padding(call.keys, mask), zero_padding(call.values, mask)
        q, k, v = (x[:, None] for x in promote_dtype(*inputs, dtype=self.dtype))  # one head
        dropout = nn.Dropout(self.dropout)
        score = self._score(q, k)
        if not return_weights:
            operands = Operands(*score.operands(q, (k,)), (v,))
            heads = attend_in_blocks(operands, score.in_blocks(), mask, dropout, training, precision=self.precision)
            return heads[:, 0]
        scores = add_bias(score(q, k), mask)  # (B, 1, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, 1, Lq, Lk)
        kept = drop(weights, mask, dropout, training)  # (B, 1, Lq, Lk)
        heads = weighted_sum(kept, v, precision=self.precision)  # (B, 1, Lq, Dv)
        return heads[:, 0], weights[:, 0]


class DotProductAttention(_AttentionWithoutHeads):
    """A layer that returns softmax(q.k * scale) v, without projections and heads.

    Attributes:
        dropout: probability that a weight is dropped unless `deterministic`.
        scaled: True for scale = 1 / sqrt(d), False for 1.
        dtype: the dtype of the computation. None: the inputs' dtype.
        precision: the precision of the matrix products (see `MultiHeadAttention`).

    >>> import jax
    >>> queries, keys, values = (jax.numpy.ones(shape) for shape in [(2, 4, 3), (2, 6, 3), (2, 6, 5)])
    >>> DotProductAttention().apply({}, queries, keys, values).shape
    (2, 4, 5)
    """

    dropout: float = 0.0
    scaled: bool = True
    _: KW_ONLY
    dtype: Dtype | None = None
    precision: PrecisionLike = "highest"

    def _score(self, queries: Array, keys: Array) -> DotScore:
        check_same_width(queries.shape[-1], keys.shape[-1])
        return DotScore(queries.shape[-1] ** -0.5 if self.scaled else 1.0, precision=self.precision)


class AdditiveAttention(_AttentionWithoutHeads):
    """A layer that returns softmax(w . tanh(A q + C k)) v; queries and keys may differ in width (arXiv:1409.0473).

    Attributes:
        score_dim: S, the width of the hidden layer.
        dropout: probability that a weight is dropped unless `deterministic`.
        query_dim, key_dim: input widths. None: the first call decides.
        dtype, param_dtype, precision: see `MultiHeadAttention`.

    >>> import jax
    >>> attention = AdditiveAttention(8)
    >>> queries, keys, values = (jax.numpy.ones(shape) for shape in [(2, 4, 20), (2, 6, 3), (2, 6, 5)])
    >>> output, variables = attention.init_with_output(jax.random.key(0), queries, keys, values)
    >>> output.shape
    (2, 4, 5)
    """

    score_dim: int
    dropout: float = 0.0
    _: KW_ONLY
    query_dim: int | None = None
    key_dim: int | None = None
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = "highest"

    def __post_init__(self) -> None:
        check_size("score_dim", self.score_dim)
        super().__post_init__()

    def setup(self) -> None:
        self.score = AdditiveScore(self.score_dim, self.dtype, self.param_dtype, self.precision)

    def _score(self, queries: Array, keys: Array) -> AdditiveScore:
        return self.score

    def _widths(self, variables: Mapping[str, Any]) -> Widths:
        query_dim = in_width(self.query_dim, variables, "score", "query")
        return query_dim, in_width(self.key_dim, variables, "score", "key"), None
