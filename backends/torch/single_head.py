"""Attention without heads and without projections as PyTorch modules, one for each score."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from backends.torch.fast.attend import attend_in_blocks
from backends.torch.ops.additive import AdditiveScore
from backends.torch.ops.attention import Rules, add_bias, dot_score, drop, masked_softmax, weighted_sum, zero_padding
from backends.torch.ops.framework import as_tensor, device_of_call, in_width
from backends.torch.ops.masks import Widths, Window, build_mask, check_first_call, sources_of
from mha_core.call.arguments import settled
from mha_core.call.checks import check_dropout_keep, check_same_width
from mha_core.call.masks import keep_for_one_head
from mha_core.config import check_dropout, check_size


class _AttentionWithoutHeads(nn.Module):
    """What DotProductAttention and AdditiveAttention share: everything but the score."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = check_dropout(dropout)

    def _score(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(B, 1, Lq, width), (B, 1, Lk, width) -> (B, 1, Lq, Lk)."""
        raise NotImplementedError  # each subclass has its own

    def _widths(self) -> Widths:
        return None, None, None

    def _dtype(self) -> torch.dtype | None:
        """That of the parameters; None without any, where the inputs decide."""
        return next((parameter.dtype for parameter in self.parameters()), None)

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
        device = device_of_call(self, queries, keys, values)
        queries, keys, values = (as_tensor(array, device) for array in (queries, keys, values))
        given = {"allowed": allowed, "bias": bias, "causal": causal, "query_offset": query_offset, "window": window}
        sources = sources_of(queries, device, valid_lens, **given).for_one_head(lambda array: array[:, None])
        keep = keep_for_one_head(as_tensor(settled("dropout_keep", dropout_keep), device), lambda array: array[:, None])
        check_dropout_keep(keep, training=self.training)
        mask = build_mask(queries, keys, values, sources, keep, num_heads=1, widths=self._widths(), dtype=self._dtype())
        q, k, v = (x[:, None] for x in (queries, zero_padding(keys, mask), zero_padding(values, mask)))
        if not return_weights:
            return attend_in_blocks(*self._scored(q, k), v, mask, self._rules(q))[:, 0]
        scores = add_bias(self._score(q, k), mask)  # (B, 1, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, 1, Lq, Lk)
        heads = weighted_sum(drop(weights, mask, self.dropout, self.training), v)  # (B, 1, Lq, Dv)
        return heads[:, 0], weights[:, 0]

    def _scored(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys as wide as the score takes them, once for all blocks; see `_rules`."""
        return queries, keys

    def _rules(self, queries: Tensor) -> Rules:
        return Rules(dropout=self.dropout if self.training else 0.0)


class DotProductAttention(_AttentionWithoutHeads):
    """softmax(q.k * scale) v, without projections and heads.

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

    def _score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return dot_score(*self._scored(queries, keys), self._scale(queries))

    def _scored(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        check_same_width(queries.shape[-1], keys.shape[-1])
        return queries, keys

    def _rules(self, queries: Tensor) -> Rules:
        return super()._rules(queries)._replace(scale=self._scale(queries))

    def _scale(self, queries: Tensor) -> float:
        return queries.shape[-1] ** -0.5 if self.scaled else 1.0


class AdditiveAttention(LazyModuleMixin, _AttentionWithoutHeads):
    """softmax(w . tanh(A q + C k)) v, for queries and keys of any two widths (arXiv:1409.0473).

    Args:
        score_dim: S, the width of the hidden layer.
        dropout: probability that a weight is dropped in training.
        query_dim, key_dim: input widths. None: the first call decides.
        device, dtype: of the parameters.

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
        """Let the first call decide the input widths that were not given; torch runs this before it."""
        if None not in self._widths()[:2]:
            return
        device = device_of_call(self, queries, keys, values)
        queries, keys, values = (as_tensor(array, device) for array in (queries, keys, values))
        check_first_call(queries, keys, values, self._dtype(), device)
        self.score.query(queries[:, :0])
        self.score.key(keys[:, :0])

    def _score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.score(queries, keys)

    def _scored(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        return self.score.query(queries), self.score.key(keys)

    def _rules(self, queries: Tensor) -> Rules:
        return super()._rules(queries)._replace(vector=self.score.vector)

    def _widths(self) -> Widths:
        return in_width(self.score.query), in_width(self.score.key), None
