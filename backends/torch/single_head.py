"""Attention without heads and without projections as PyTorch modules, one for each score."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from backends.torch.fast.attend import attend_in_blocks
from backends.torch.ops.attention import add_bias, drop, masked_softmax, weighted_sum, zero_padding
from backends.torch.ops.framework import in_width
from backends.torch.ops.masks import Mask, Window, build_mask, check_first_call, expected_dtype, placed, traceable
from backends.torch.ops.scores import AdditiveScore, DotScore
from mha_core.call.blocks import Operands
from mha_core.call.call import Call, LayerSpec, Widths
from mha_core.call.checks import check_dropout_keep, check_same_width
from mha_core.call.masks import AttentionMask
from mha_core.config import check_size
from mha_core.dtypes import check_dropout


class _AttentionWithoutHeads(nn.Module):
    """Base of DotProductAttention and AdditiveAttention, which define the score. The stages see one head."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = check_dropout(dropout)

    def _project(self, call: Call[Tensor], mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, 1, Lq, Dq), keys (B, 1, Lk, Dk) and values (B, 1, Lk, Dv), as they are: nothing projects them."""
        queries = call.queries[:, None]  # (B, 1, Lq, Dq)
        keys = zero_padding(call.keys, mask)[:, None]  # (B, 1, Lk, Dk)
        values = zero_padding(call.values, mask)[:, None]  # (B, 1, Lk, Dv)
        return queries, keys, values

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        valid_lens: Tensor | None = None,
        *,
        allowed: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        query_offset: int | Tensor = 0,
        window: Window | None = None,
        dropout_keep: Tensor | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        The arguments are those of `MultiHeadAttention.forward`, with weights (B, Lq, Lk): `allowed`
        and `bias` broadcast to that shape, and `dropout_keep` has it.

        Returns:
            The output (B, Lq, Dv), or the pair (output, weights).
        """
        sources = AttentionMask(
            traceable(valid_lens),
            traceable(allowed),
            traceable(bias, bias_dtype=getattr(queries, "dtype", None)),
            causal,
            traceable(query_offset),
            window,
        )
        call = self._placed(Call(queries, keys, values, sources, dropout_keep))
        mask = build_mask(call, self._spec())
        queries, keys, values = self._project(call, mask)  # (B, 1, Lq, Dq), (B, 1, Lk, Dk), (B, 1, Lk, Dv)
        score = self._score(queries, keys)
        if not return_weights:
            operands = Operands(*score.operands(queries, (keys,)), (values,))
            return attend_in_blocks(operands, score.in_blocks(), mask, self.dropout, self.training)[:, 0]
        scores = add_bias(score(queries, keys), mask)  # (B, 1, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, 1, Lq, Lk)
        kept = drop(weights, mask, self.dropout, self.training)  # (B, 1, Lq, Lk)
        heads = weighted_sum(kept, values)  # (B, 1, Lq, Dv)
        return heads[:, 0], weights[:, 0]

    def _placed(self, call: Call[Any]) -> Call[Any]:
        """The call in tensors, as of one head; SpecError for a keep-mask outside training."""
        call = placed(call, self).for_one_head(lambda array: array[:, None])
        check_dropout_keep(call.dropout_keep, training=self.training)
        return call

    def _spec(self) -> LayerSpec:
        """The widths and the dtype of the parameters: `check_call` checks every call against them."""
        return LayerSpec(widths=self._widths(), dtype=expected_dtype(self))

    def _widths(self) -> Widths:
        """(Dq, Dk, Dv); None for a width that may be any, or that the first call decides."""
        return None, None, None

    def _score(self, queries: Tensor, keys: Tensor) -> DotScore | AdditiveScore:
        """The score of queries (B, 1, Lq, Dq) and keys (B, 1, Lk, Dk); SpecError for widths that it does not take."""
        raise NotImplementedError  # each subclass has its own


class DotProductAttention(_AttentionWithoutHeads):
    """A layer that returns softmax(q.k * scale) v, without projections and heads.

    Args:
        dropout: probability that a weight is dropped in training.
        scaled: True for scale = 1 / sqrt(d), False for 1.

    >>> import torch
    >>> attention = DotProductAttention()
    >>> attention(torch.randn(2, 4, 3), torch.randn(2, 6, 3), torch.randn(2, 6, 5)).shape
    torch.Size([2, 4, 5])
    """

    def __init__(self, dropout: float = 0.0, scaled: bool = True) -> None:
        super().__init__(dropout)
        self.scaled = scaled

    def _score(self, queries: Tensor, keys: Tensor) -> DotScore:
        check_same_width(queries.shape[-1], keys.shape[-1])
        return DotScore(queries.shape[-1] ** -0.5 if self.scaled else 1.0)


class AdditiveAttention(LazyModuleMixin, _AttentionWithoutHeads):
    """A layer that returns softmax(w . tanh(A q + C k)) v; queries and keys may differ in width (arXiv:1409.0473).

    Args:
        score_dim: S, the width of the hidden layer.
        dropout: probability that a weight is dropped in training.
        query_dim, key_dim: input widths. None: the first call decides.
        device, dtype: the device and the dtype of the parameters.

    >>> import torch
    >>> attention = AdditiveAttention(8)
    >>> attention(torch.randn(2, 4, 20), torch.randn(2, 6, 3), torch.randn(2, 6, 5)).shape
    torch.Size([2, 4, 5])
    """

    def __init__(
        self,
        score_dim: int,
        dropout: float = 0.0,
        *,
        query_dim: int | None = None,
        key_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dropout)
        score_dim = check_size("score_dim", score_dim)
        self.score = AdditiveScore(query_dim, key_dim, score_dim, device=device, dtype=dtype)

    def initialize_parameters(self, queries: Tensor, keys: Tensor, values: Tensor, *_: object, **__: object) -> None:
        """Set the input widths that were not given to those of the first call. PyTorch runs this before `forward`."""
        if None not in self._widths()[:2]:
            return
        call = placed(Call(queries, keys, values), self)
        check_first_call(call, self)
        self.score.query(call.queries[:, :0])
        self.score.key(call.keys[:, :0])

    def _score(self, queries: Tensor, keys: Tensor) -> AdditiveScore:
        return self.score

    def _widths(self) -> Widths:
        return in_width(self.score.query), in_width(self.score.key), None
