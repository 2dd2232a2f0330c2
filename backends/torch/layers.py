"""Multi-head attention as a PyTorch module.

Parameters bear the canonical names and shapes of `mha_core.weights`: a `state_dict` needs no renaming.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from backends.torch.fast.attend import attend_in_blocks
from backends.torch.ops.attention import (
    add_bias,
    after_past,
    cap,
    drop,
    masked_softmax,
    parts_of,
    weighted_sum,
    zero_padding,
)
from backends.torch.ops.framework import in_width, linear
from backends.torch.ops.heads import merge_heads, split_heads
from backends.torch.ops.masks import (
    Mask,
    Window,
    build_mask,
    check_first_call,
    expected_dtype,
    placed,
    plain_form,
    plain_mask,
    traceable,
)
from backends.torch.ops.query_key_norm import HeadNorm, Unnormed, unnormed
from backends.torch.ops.rotary import rotary_tables, rotate
from backends.torch.ops.scores import AdditiveScore, DotScore
from mha_core import AttentionConfig, AttentionMask, ProjectionBias, RotaryInputs
from mha_core.call.blocks import Operands
from mha_core.call.call import Call, LayerSpec, Widths
from mha_core.call.checks import check_dropout_keep
from mha_core.call.results import Attended, Stages, returned
from mha_core.config import check_size


class MultiHeadAttention(LazyModuleMixin, nn.Module):
    """Multi-head attention as `mha_core` defines it.

    Args:
        embed_dim, num_heads, dropout, bias: see `mha_core.AttentionConfig`.
        device, dtype: the device and the dtype of the parameters, as in every PyTorch module.
        **options: the other keywords of `mha_core.AttentionConfig`, such as `num_kv_heads` and `score`. Where
            `query_dim`, `key_dim` or `value_dim` is not given, the first call decides it, as in `torch.nn.LazyLinear`.

    Raises:
        SpecError: the sizes contradict each other, or a later call does not fit them.

    >>> import torch
    >>> layer = MultiHeadAttention(100, 5, dropout=0.5).eval()
    >>> queries, keys = torch.randn(2, 4, 100), torch.randn(2, 6, 100)
    >>> output, weights = layer(queries, keys, keys, torch.tensor([3, 2]), return_weights=True)
    >>> output.shape, weights.shape
    (torch.Size([2, 4, 100]), torch.Size([2, 5, 4, 6]))
    """

    _passed: tuple[Any, ...] | None = None  # the form of the last plain call that passed the checks

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool | Mapping[str, bool] | ProjectionBias = False,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._config = config = AttentionConfig(embed_dim, num_heads, dropout=dropout, bias=bias, **options)
        factory: Any = {"device": device, "dtype": dtype}
        query_width = config.num_heads * config.head_dim
        key_width = config.num_kv_heads * config.head_dim
        value_width = config.num_kv_heads * config.value_head_dim
        head_width = config.num_heads * config.value_head_dim
        if config.projections:
            self.q_proj = linear(options.get("query_dim"), query_width, config.bias.q_proj, **factory)
            self.k_proj = linear(options.get("key_dim"), key_width, config.bias.k_proj, **factory)
            self.v_proj = linear(options.get("value_dim"), value_width, config.bias.v_proj, **factory)
            self.out_proj = nn.Linear(head_width, config.output_dim, config.bias.out_proj, **factory)
        else:
            unchanged: Any = nn.Identity()
            self.q_proj = self.k_proj = self.v_proj = self.out_proj = unchanged
        if config.query_key_norm is None:
            self.q_norm: HeadNorm | Unnormed = unnormed
            self.k_norm: HeadNorm | Unnormed = unnormed
        else:
            q_size, k_size = config.norm_sizes
            self.q_norm = HeadNorm(config.query_key_norm, q_size, **factory)
            self.k_norm = HeadNorm(config.query_key_norm, k_size, **factory)
        if config.score_dim is None:
            self.score: DotScore | AdditiveScore = DotScore(config.softmax_scale)
        else:
            self.score = AdditiveScore(config.head_dim, config.head_dim, config.score_dim, **factory)

    @property
    def config(self) -> AttentionConfig:
        """Return the layer's config, with the input widths of its parameters. SpecError before the first call."""
        return self._config.with_widths(*self._widths())

    def after_projection(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, Lq, d), keys (B, G, L, d), values (B, G, L, dv), unchanged; a subclass may change them.

        This runs before norms and rotary positions. `past_keys` and `past_values` are not passed to it.
        """
        return queries, keys, values

    def _project(self, call: Call[Tensor], mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, Lq, d), new keys (B, G, L, d) and new values (B, G, L, dv): split, normed and turned."""
        config = self._config
        queries = split_heads(self.q_proj(call.queries), config.num_heads)  # (B, H, Lq, d)
        keys = split_heads(self.k_proj(zero_padding(call.keys, mask)), config.num_kv_heads)  # (B, G, L, d)
        values = split_heads(self.v_proj(zero_padding(call.values, mask)), config.num_kv_heads)  # (B, G, L, dv)
        queries, keys, values = self.after_projection(queries, keys, values)
        if config.parts:
            queries, keys = self._norm_and_turn(queries, keys, call)
        return queries, keys, values

    def _norm_and_turn(self, queries: Tensor, keys: Tensor, call: Call[Tensor]) -> tuple[Tensor, Tensor]:
        """Queries and new keys, (B, heads, L, d), normed before or after they turn with their positions."""
        rotary = self._config.rotary
        queries, keys = self.q_norm(queries, "before"), self.k_norm(keys, "before")
        tables = rotary_tables(call, rotary)
        queries, keys = rotate(queries, tables.queries, rotary), rotate(keys, tables.keys, rotary)
        return self.q_norm(queries, "after"), self.k_norm(keys, "after")

    def stages(self, call: Call[Any]) -> Stages[Tensor]:
        """Return the Stages of a call, all arrays from queries to output."""
        config = self._config
        call, mask = self._placed(call)
        queries, new_keys, new_values = self._project(call, mask)  # (B, H, Lq, d), (B, G, L, d), (B, G, L, dv)
        keys = after_past(call.past_keys, new_keys, mask)  # (B, G, Lk, d)
        values = after_past(call.past_values, new_values, mask)  # (B, G, Lk, dv)
        similarity = self.score(queries, keys)  # (B, H, Lq, Lk)
        scores = add_bias(cap(similarity, config), mask)  # (B, H, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, H, Lq, Lk)
        kept = drop(weights, mask, config.dropout, self.training)  # (B, H, Lq, Lk)
        heads = weighted_sum(kept, values)  # (B, H, Lq, dv)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Stages(queries, keys, values, scores, weights, heads, output)

    def attend(
        self, call: Call[Any], *, return_present: bool = False, query_block: int | None = None
    ) -> Attended[Tensor]:
        """Return the same output (B, Lq, Do) as `stages`, but in memory that grows with Lq + Lk instead of Lq * Lk.

        Args:
            call: the inputs of the layer.
            return_present: also return the tuple of all keys (B, G, Lk, d) and values (B, G, Lk, dv).
            query_block: how many queries are computed at once. None: the fastest number.
        """
        query_block = None if query_block is None else check_size("query_block", query_block)
        heads, present = self._heads(*self._placed(call), return_present, query_block)  # (B, H, Lq, dv)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Attended(output, present)

    def _heads(
        self, call: Call[Tensor], mask: Mask, return_present: bool, query_block: int | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Heads (B, H, Lq, dv) and, if asked for, all keys and values; what else is made is freed before the output."""
        queries, new_keys, new_values = self._project(call, mask)  # (B, H, Lq, d), (B, G, L, d), (B, G, L, dv)
        join = return_present or queries.shape[2] != 1  # one query reads past and new keys once each, where they are
        keys = parts_of(call.past_keys, new_keys, mask, join=join)  # (B, G, Lk, d)
        values = parts_of(call.past_values, new_values, mask, join=join)  # (B, G, Lk, dv)
        operands = Operands(*self.score.operands(queries, keys), values)
        score, dropout = self.score.in_blocks().capped(self._config), self._config.dropout
        heads = attend_in_blocks(operands, score, mask, dropout, self.training, query_block=query_block)
        return heads, (keys[0], values[0]) if return_present else None

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
        positions: Any = None,
        rotary: Any = None,
        return_weights: bool = False,
        return_present: bool = False,
    ) -> Tensor | tuple[Any, ...]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        Args:
            queries, keys, values: tensors or NumPy arrays, of the parameters' dtype.
            valid_lens, allowed, bias, causal, query_offset, window: see `mha_core.AttentionMask`; tensors,
                arrays of NumPy, or lists.
            dropout_keep: bool (B, H, Lq, Lk), True where dropout keeps a weight; only in training.
            past_keys, past_values: (B, G, Lp, d), (B, G, Lp, dv), returned by `return_present` in earlier
                steps of decoding. They come before the new keys (B, Lk - Lp, Dk): Lk counts both, in masks too.
            positions: integers >= 0, (L,) or (B, L), in a layer with rotary positions. One array is for queries and new
                keys, a tuple has one for each. Default: query i is at query_offset + i, new key j at Lp + j.
            rotary: instead of positions, the tuple (cos, sin) of the rotation angles, each (L, r / 2) or (B, L, r / 2);
                or two such tuples, for queries and for new keys.
            return_weights: also return the weights (B, H, Lq, Lk), per head and before dropout.
            return_present: also return the tuple of all keys (B, G, Lk, d) and values (B, G, Lk, dv), the next past.

        Returns:
            The output (B, Lq, Do). A tuple if more is asked for: the output, then the weights, then the present.

        Raises:
            SpecError: an argument does not fit; the message names it. No arithmetic is done before.
        """
        mask = AttentionMask(
            traceable(valid_lens),
            traceable(allowed),
            traceable(bias, bias_dtype=getattr(queries, "dtype", None)),
            causal,
            traceable(query_offset),
            window,
        )
        past = (past_keys, past_values)
        call = Call(queries, keys, values, mask, dropout_keep, *past, RotaryInputs.of(positions, rotary))
        made = self.stages(call) if return_weights else self.attend(call, return_present=return_present)
        return returned(made, return_weights=return_weights, return_present=return_present)

    def initialize_parameters(self, queries: Tensor, keys: Tensor, values: Tensor, *_: object, **__: object) -> None:
        """Set the input widths that were not given to those of the first call. PyTorch runs this before `forward`."""
        if None not in self._widths():  # given, or of weights that were loaded: then `forward` checks the call
            return
        call = placed(Call(queries, keys, values), self)
        check_first_call(call, self)
        for projection, x in ((self.q_proj, call.queries), (self.k_proj, call.keys), (self.v_proj, call.values)):
            projection(x[:, :0])  # a LazyLinear needs to see the width, not the rows

    def extra_repr(self) -> str:
        return f"embed_dim={self._config.embed_dim}, num_heads={self._config.num_heads}, score={self._config.score!r}"

    def _placed(self, call: Call[Any]) -> tuple[Call[Tensor], Mask]:
        """The call in tensors, where it is computed, and its mask; SpecError if the layer cannot answer it."""
        form = plain_form(call) if self._config.projections else None
        if form is not None:
            form = (*form, self._widths(), self.q_proj.weight.dtype)
            if form == self._passed:
                return call, plain_mask(call)
        call = placed(call, self)
        check_dropout_keep(call.dropout_keep, training=self.training)
        mask = build_mask(call, self._spec())
        if form is not None:
            self._passed = form
        return call, mask

    def _spec(self) -> LayerSpec:
        """The config, with the widths and the dtype of the parameters: `check_call` checks every call against it."""
        return LayerSpec.of(self._config, widths=self._widths(), dtype=expected_dtype(self))

    def _widths(self) -> Widths:
        """(Dq, Dk, Dv); None for a width that the first call decides."""
        if not self._config.projections:
            return self._config.query_dim, self._config.key_dim, self._config.value_dim
        return in_width(self.q_proj), in_width(self.k_proj), in_width(self.v_proj)
