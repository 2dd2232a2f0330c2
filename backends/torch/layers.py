"""Multi-head attention as a PyTorch module.

Parameters bear the canonical names and shapes of `mha_core.weights`: a `state_dict` needs no renaming.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from backends.torch.fast.attend import Attended, attend_in_blocks, attend_one_query
from backends.torch.ops.additive import AdditiveScore
from backends.torch.ops.attention import (
    Rules,
    Stages,
    add_bias,
    after_past,
    cap,
    dot_score,
    drop,
    masked_softmax,
    weighted_sum,
    zero_padding,
)
from backends.torch.ops.framework import as_tensor, device_of_call, in_width, linear
from backends.torch.ops.heads import merge_heads, split_heads
from backends.torch.ops.masks import Mask, Widths, Window, build_mask, check_first_call, sources_of
from mha_core.call.arguments import settled
from mha_core.call.checks import check_dropout_keep
from mha_core.config import AttentionConfig, ProjectionBias, ScoreName, check_size


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
        score: ScoreName = "scaled_dot",
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
            self.q_proj = linear(query_dim, query_width, config.bias.q_proj, **factory)
            self.k_proj = linear(key_dim, key_width, config.bias.k_proj, **factory)
            self.v_proj = linear(value_dim, value_width, config.bias.v_proj, **factory)
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
        if None not in self._widths():  # given, or of weights that were loaded: then `forward` checks the call
            return
        device = device_of_call(self, queries, keys, values)
        queries, keys, values = (as_tensor(array, device) for array in (queries, keys, values))
        check_first_call(queries, keys, values, next(self.parameters()).dtype, device)
        for projection, x in ((self.q_proj, queries), (self.k_proj, keys), (self.v_proj, values)):
            projection(x[:, :0])  # a LazyLinear needs to see the width, not the rows

    def stages(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None, **others: Any
    ) -> Stages:
        """All seven stages of one call; the arguments are those of `forward`."""
        config = self._config
        q, k, v, mask, past = self._project(queries, keys, values, valid_lens, **others)
        k, v = (after_past(old, new, mask) for old, new in zip(past, (k, v), strict=True))  # (B, G, Lk, d or dv)
        scores = add_bias(cap(self._score(q, k), config.softcap), mask)  # (B, H, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, H, Lq, Lk)
        heads = weighted_sum(drop(weights, mask, config.dropout, self.training), v)  # (B, H, Lq, dv)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Stages(q, k, v, scores, weights, heads, output)

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        valid_lens: Tensor | None = None,
        *,
        return_present: bool = False,
        query_block: int | None = None,
        **others: Any,
    ) -> Attended:
        """The output of `stages`, and the present if asked for, in memory that grows with Lq + Lk.

        Args:
            queries to valid_lens, others: those of `forward`.
            return_present: also return the pair keys (B, G, Lk, d), values (B, G, Lk, dv).
            query_block: queries that are computed at once. None: as many as are fastest.
        """
        query_block = None if query_block is None else check_size("query_block", query_block)
        q, k, v, mask, past = self._project(queries, keys, values, valid_lens, **others)
        past_keys, past_values = past
        if past_keys is not None and past_values is not None and q.shape[2] == 1 and not return_present:
            q, *parts = self._scored(q, past_keys, k)
            heads = attend_one_query(q, parts, [past_values, v], mask, self._rules())  # (B, H, 1, dv)
        else:
            k, v = after_past(past_keys, k, mask), after_past(past_values, v, mask)  # (B, G, Lk, d), (B, G, Lk, dv)
            q, scored = self._scored(q, k)
            heads = attend_in_blocks(q, scored, v, mask, self._rules(), query_block)  # (B, H, Lq, dv)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Attended(output, (k, v) if return_present else None)

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
            queries, keys, values: of the parameters' dtype; tensors, or arrays of NumPy.
            valid_lens, allowed, bias, causal, query_offset, window: see `mha_core.AttentionMask`; tensors,
                arrays of NumPy, or lists.
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
        sources: dict[str, Any] = {
            "allowed": allowed,
            "bias": bias,
            "causal": causal,
            "query_offset": query_offset,
            "window": window,
            "dropout_keep": dropout_keep,
            "past_keys": past_keys,
            "past_values": past_values,
        }
        if return_weights:
            stages = self.stages(queries, keys, values, valid_lens, **sources)
            extra = (stages.weights, (stages.keys, stages.values)) if return_present else (stages.weights,)
            return (stages.output, *extra)
        attended = self.attend(queries, keys, values, valid_lens, return_present=return_present, **sources)
        return (attended.output, attended.present) if return_present else attended.output

    def extra_repr(self) -> str:
        return f"embed_dim={self._config.embed_dim}, num_heads={self._config.num_heads}, score={self._config.score!r}"

    def _project(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        valid_lens: Tensor | None,
        *,
        dropout_keep: Tensor | None = None,
        past_keys: Tensor | None = None,
        past_values: Tensor | None = None,
        **sources: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Mask, tuple[Tensor | None, Tensor | None]]:
        """Check the call; queries (B, H, Lq, d), new keys and values (B, G, Lk - Lp, d or dv), mask, past."""
        config = self._config
        device = device_of_call(self, queries, keys, values)
        queries, keys, values = (as_tensor(array, device) for array in (queries, keys, values))
        past_keys, past_values = (as_tensor(array, device) for array in (past_keys, past_values))
        mask_sources = sources_of(queries, device, valid_lens, **sources)
        keep = as_tensor(settled("dropout_keep", dropout_keep), device)
        check_dropout_keep(keep, training=self.training)
        mask = build_mask(
            *(queries, keys, values, mask_sources, keep, past_keys, past_values),
            num_heads=config.num_heads,
            widths=self._widths(),
            head_shapes=config.head_shapes,
            split=not config.projections,
            dtype=next((parameter.dtype for parameter in self.parameters()), None),
        )
        q = split_heads(self.q_proj(queries), config.num_heads)
        k = split_heads(self.k_proj(zero_padding(keys, mask)), config.num_kv_heads)
        v = split_heads(self.v_proj(zero_padding(values, mask)), config.num_kv_heads)
        return q, k, v, mask, (past_keys, past_values)

    def _score(self, queries: Tensor, keys: Tensor) -> Tensor:
        if self._config.score == "additive":
            return self.score(queries, keys)
        return dot_score(queries, keys, self._config.softmax_scale)

    def _scored(self, queries: Tensor, *keys: Tensor) -> tuple[Tensor, ...]:
        """Queries and keys as wide as the score takes them, once for all blocks; see `_rules`."""
        if self._config.score == "additive":
            return self.score.query(queries), *map(self.score.key, keys)
        return queries, *keys

    def _rules(self) -> Rules:
        config = self._config
        vector = self.score.vector if config.score == "additive" else None
        return Rules(config.softmax_scale, vector, config.softcap, config.dropout if self.training else 0.0)

    def _widths(self) -> Widths:
        if not self._config.projections:
            return self._config.query_dim, self._config.key_dim, self._config.value_dim
        return in_width(self.q_proj), in_width(self.k_proj), in_width(self.v_proj)
