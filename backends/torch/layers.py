"""The layers as PyTorch modules.

Parameters bear the canonical names and shapes of `mha_core.weights`: a `state_dict` needs no renaming.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter

from backends.torch.attention import (
    Stages,
    add_bias,
    additive_score,
    after_past,
    cap,
    dot_score,
    drop,
    masked_softmax,
    weighted_sum,
    zero_padding,
)
from backends.torch.framework import describe
from backends.torch.heads import merge_heads, split_heads
from backends.torch.masks import build_mask
from mha_core.checks import check_call, check_dropout_keep, check_same_width
from mha_core.config import AttentionConfig, ProjectionBias, Score, check_dropout, check_size
from mha_core.masks import AttentionMask
from mha_core.positions import check_positions, sinusoidal_positions

Window = tuple[int | None, int | None]


class MultiHeadAttention(LazyModuleMixin, nn.Module):
    """Multi-head attention as `mha_core` defines it.

    Args:
        embed_dim, num_heads, dropout, bias, and the keywords up to `score_dim`: see
            `mha_core.AttentionConfig`. Where `query_dim`, `key_dim` or `value_dim` is None, the
            first call decides it, as in `torch.nn.LazyLinear`.
        device, dtype: of the parameters, as in every PyTorch module.

    Raises:
        SpecError: sizes that contradict each other; later, a call that does not fit them.

    >>> import torch
    >>> layer = MultiHeadAttention(100, 5, dropout=0.5).eval()
    >>> queries, keys = torch.randn(2, 4, 100), torch.randn(2, 6, 100)
    >>> output, weights = layer(queries, keys, keys, torch.tensor([3, 2]), return_weights=True)
    >>> output.shape, weights.shape
    (torch.Size([2, 4, 100]), torch.Size([2, 5, 4, 6]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool | Mapping[str, bool] | ProjectionBias = False,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        query_dim: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        output_dim: int | None = None,
        score: Score = "scaled_dot",
        scale: float | None = None,
        score_dim: int | None = None,
        softcap: float | None = None,
        projections: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._config = config = AttentionConfig(
            embed_dim,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            query_dim=query_dim,
            key_dim=key_dim,
            value_dim=value_dim,
            output_dim=output_dim,
            bias=bias,
            score=score,
            scale=scale,
            score_dim=score_dim,
            softcap=softcap,
            projections=projections,
            dropout=dropout,
        )
        factory: Any = {"device": device, "dtype": dtype}
        query_width = config.num_heads * config.head_dim
        key_width = config.num_kv_heads * config.head_dim
        value_width = config.num_kv_heads * config.value_head_dim
        head_width = config.num_heads * config.value_head_dim
        if config.projections:
            self.q_proj = _linear(query_dim, query_width, config.bias.q_proj, **factory)
            self.k_proj = _linear(key_dim, key_width, config.bias.k_proj, **factory)
            self.v_proj = _linear(value_dim, value_width, config.bias.v_proj, **factory)
            self.out_proj = nn.Linear(head_width, config.output_dim, config.bias.out_proj, **factory)
        else:
            unchanged: Any = nn.Identity()
            self.q_proj = self.k_proj = self.v_proj = self.out_proj = unchanged
        if config.score_dim is not None:
            self.score = AdditiveScore(config.head_dim, config.head_dim, config.score_dim, **factory)

    @property
    def config(self) -> AttentionConfig:
        """The config with the widths that the parameters have. SpecError before the first call decided them."""
        return self._config.with_widths(*self._widths())

    def initialize_parameters(self, queries: Tensor, keys: Tensor, values: Tensor, *_: object, **__: object) -> None:
        """Let the first call decide the input widths that were not given; torch runs this before it."""
        if not self._config.projections:
            return
        check_call(queries=queries, keys=keys, values=values, mask=AttentionMask(), num_heads=1, describe=describe)
        for linear, x in ((self.q_proj, queries), (self.k_proj, keys), (self.v_proj, values)):
            linear(x[:, :0])  # a LazyLinear needs to see the width, not the rows

    def stages(
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
        past_keys: Tensor | None = None,
        past_values: Tensor | None = None,
    ) -> Stages:
        """All seven stages of one call; the arguments are those of `forward`."""
        config = self._config
        check_dropout_keep(dropout_keep, training=self.training)
        sources = AttentionMask(valid_lens, allowed, bias, causal, query_offset, window)
        mask = build_mask(
            *(queries, keys, values, sources, dropout_keep, past_keys, past_values),
            num_heads=config.num_heads,
            widths=self._widths(),
            head_shapes=config.head_shapes,
            split=not config.projections,
            dtype=next((parameter.dtype for parameter in self.parameters()), None),
        )
        q = split_heads(self.q_proj(queries), config.num_heads)  # (B, H, Lq, d)
        k = split_heads(self.k_proj(zero_padding(keys, mask)), config.num_kv_heads)
        v = split_heads(self.v_proj(zero_padding(values, mask)), config.num_kv_heads)
        k, v = after_past(past_keys, k, mask), after_past(past_values, v, mask)  # (B, G, Lk, d), (B, G, Lk, dv)
        scores = add_bias(cap(self._score(q, k), config.softcap), mask)  # (B, H, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, H, Lq, Lk)
        heads = weighted_sum(drop(weights, mask, config.dropout, self.training), v)  # (B, H, Lq, dv)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Stages(q, k, v, scores, weights, heads, output)

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
        past_keys: Tensor | None = None,
        past_values: Tensor | None = None,
        return_weights: bool = False,
        return_present: bool = False,
    ) -> Tensor | tuple[Any, ...]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        Args:
            queries, keys, values: of the parameters' dtype.
            valid_lens, allowed, bias, causal, query_offset, window: see `mha_core.AttentionMask`.
            dropout_keep: bool (B, H, Lq, Lk), the weights that dropout keeps; only in training.
            past_keys, past_values: (B, G, Lp, d), (B, G, Lp, dv), what `return_present` gave in earlier
                steps of decoding. They stand before the new keys; Lk counts both, in masks too.
            return_weights: also return the weights (B, H, Lq, Lk), per head and before dropout.
            return_present: also return the pair keys (B, G, Lk, d), values (B, G, Lk, dv): the next past.

        Returns:
            The output (B, Lq, Do), or a tuple: the output, then what was asked for in this order.

        Raises:
            SpecError: before any arithmetic, naming what does not fit.
        """
        stages = self.stages(
            queries,
            keys,
            values,
            valid_lens,
            allowed=allowed,
            bias=bias,
            causal=causal,
            query_offset=query_offset,
            window=window,
            dropout_keep=dropout_keep,
            past_keys=past_keys,
            past_values=past_values,
        )
        extra: list[Any] = [stages.weights] if return_weights else []
        extra += [(stages.keys, stages.values)] if return_present else []
        return (stages.output, *extra) if extra else stages.output

    def extra_repr(self) -> str:
        return f"embed_dim={self._config.embed_dim}, num_heads={self._config.num_heads}, score={self._config.score!r}"

    def _score(self, queries: Tensor, keys: Tensor) -> Tensor:
        if self._config.score == "additive":
            return self.score(queries, keys)
        return dot_score(queries, keys, self._config.softmax_scale)

    def _widths(self) -> tuple[int | None, int | None, int | None]:
        if not self._config.projections:
            return self._config.query_dim, self._config.key_dim, self._config.value_dim
        return _in_width(self.q_proj), _in_width(self.k_proj), _in_width(self.v_proj)


class _AttentionWithoutHeads(nn.Module):
    """What DotProductAttention and AdditiveAttention share: everything but the score."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = check_dropout(dropout)

    def _score(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(B, 1, Lq, width), (B, 1, Lk, width) -> (B, 1, Lq, Lk)."""
        raise NotImplementedError  # each subclass has its own

    def _widths(self) -> tuple[int | None, int | None, int | None]:
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
        check_dropout_keep(dropout_keep, training=self.training)
        sources = AttentionMask(valid_lens, allowed, bias, causal, query_offset, window)
        sources = sources.for_one_head(lambda array: array[:, None])
        keep = None if dropout_keep is None else dropout_keep[:, None]
        mask = build_mask(queries, keys, values, sources, keep, num_heads=1, widths=self._widths(), dtype=self._dtype())
        keys, values = zero_padding(keys, mask), zero_padding(values, mask)
        scores = add_bias(self._score(queries[:, None], keys[:, None]), mask)  # (B, 1, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, 1, Lq, Lk)
        heads = weighted_sum(drop(weights, mask, self.dropout, self.training), values[:, None])  # (B, 1, Lq, Dv)
        return (heads[:, 0], weights[:, 0]) if return_weights else heads[:, 0]


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
        check_same_width(queries.shape[-1], keys.shape[-1])
        return dot_score(queries, keys, queries.shape[-1] ** -0.5 if self.scaled else 1.0)


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
        check_call(queries=queries, keys=keys, values=values, mask=AttentionMask(), num_heads=1, describe=describe)
        self.score.query(queries[:, :0])
        self.score.key(keys[:, :0])

    def _score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.score(queries, keys)

    def _widths(self) -> tuple[int | None, int | None, int | None]:
        return _in_width(self.score.query), _in_width(self.score.key), None


class AdditiveScore(nn.Module):
    """w . tanh(A q + C k): (..., H, Lq, Dq) and (..., G, Lk, Dk) -> (..., H, Lq, Lk)."""

    def __init__(
        self,
        query_dim: int | None,
        key_dim: int | None,
        score_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.query = _linear(query_dim, score_dim, False, device=device, dtype=dtype)
        self.key = _linear(key_dim, score_dim, False, device=device, dtype=dtype)
        self.vector = nn.Parameter(torch.empty(score_dim, device=device, dtype=dtype))
        # As nn.Linear(score_dim, 1) draws its weight.
        nn.init.uniform_(self.vector, -(score_dim**-0.5), score_dim**-0.5)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return additive_score(self.query(queries), self.key(keys), self.vector)


class PositionalEncoding(nn.Module):
    """Adds sinusoidal positions to (B, L, embed_dim), then drops out (see mha_core.sinusoidal_positions).

    >>> import torch
    >>> PositionalEncoding(4)(torch.zeros(1, 2, 4))[0, 1]
    tensor([0.8415, 0.5403, 0.0100, 0.9999])
    """

    positions: Tensor

    def __init__(
        self,
        embed_dim: int,
        dropout: float = 0.0,
        max_len: int = 1000,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(check_dropout(dropout))
        table = torch.tensor(sinusoidal_positions(max_len, embed_dim), device=device)
        self.register_buffer("positions", table.to(dtype or torch.get_default_dtype()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, embed_dim) -> (B, L, embed_dim). SpecError if the sequence or its width does not fit."""
        max_len, embed_dim = self.positions.shape
        check_positions(x.shape[1], x.shape[2], embed_dim=embed_dim, max_len=max_len)
        return self.dropout(x + self.positions[: x.shape[1]])


def _linear(
    in_width: int | None,
    out_width: int,
    bias: bool,
    *,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> nn.Linear:
    """A Linear; a LazyLinear where the first call decides the width."""
    if in_width is None:
        return nn.LazyLinear(out_width, bias, device, dtype)
    return nn.Linear(in_width, out_width, bias, device, dtype)


def _in_width(linear: nn.Linear) -> int | None:
    """The input width of a Linear, or None while a LazyLinear does not know it."""
    # Not in_features: a LazyLinear that got its weight from a state_dict leaves that at 0 until it is called.
    return None if isinstance(linear.weight, UninitializedParameter) else linear.weight.shape[1]
