"""Multi-head attention as a Gluon block.

`save_parameters` writes the parameters under the canonical names of `mha_core.weights`, in its shapes.
"""

from collections.abc import Mapping
from typing import Any

from backends.mxnet.fast.attend import attend_in_blocks
from backends.mxnet.ops.attention import (
    add_bias,
    after_past,
    cap,
    drop,
    masked_softmax,
    parts_of,
    weighted_sum,
    zero_padding,
)
from backends.mxnet.ops.framework import KeywordBlock, dense, in_width, mx
from backends.mxnet.ops.heads import merge_heads, split_heads
from backends.mxnet.ops.masks import Mask, Window, build_mask, expected_dtype, placed
from backends.mxnet.ops.query_key_norm import HeadNorm, Unnormed, unnormed
from backends.mxnet.ops.rotary import rotary_tables, rotate
from backends.mxnet.ops.scores import AdditiveScore, DotScore
from mha_core import AttentionConfig, AttentionMask, ProjectionBias, RotaryInputs
from mha_core.call.blocks import Operands
from mha_core.call.call import Call, LayerSpec, Widths
from mha_core.call.checks import check_dropout_keep
from mha_core.call.results import Attended, Stages, returned
from mha_core.config import check_size


@mx.util.use_np
class MultiHeadAttention(KeywordBlock):
    """Multi-head attention as `mha_core` defines it.

    Args:
        embed_dim, num_heads, dropout, bias: see `mha_core.AttentionConfig`.
        dtype: the dtype of the parameters: "float32" or "float64".
        prefix, params: as in every Block.
        options: the other keywords of `mha_core.AttentionConfig`, such as `num_kv_heads` and `score`. Where
            `query_dim`, `key_dim` or `value_dim` is None, the first call decides it, as in `gluon.nn.Dense`.

    Raises:
        SpecError: the sizes contradict each other, or a later call does not fit them.
        BackendError: a dtype that MXNet does not compute in.

    >>> import mxnet as mx
    >>> layer = MultiHeadAttention(100, 5, dropout=0.5)
    >>> layer.initialize()
    >>> queries, keys = mx.np.random.normal(size=(2, 4, 100)), mx.np.random.normal(size=(2, 6, 100))
    >>> output, weights = layer(queries, keys, keys, [3, 2], return_weights=True)
    >>> output.shape, weights.shape
    ((2, 4, 100), (2, 5, 4, 6))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool | Mapping[str, bool] | ProjectionBias = False,
        *,
        dtype: Any = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
        **options: Any,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self._config = config = AttentionConfig(embed_dim, num_heads, dropout=dropout, bias=bias, **options)
        query_width = config.num_heads * config.head_dim
        key_width = config.num_kv_heads * config.head_dim
        value_width = config.num_kv_heads * config.value_head_dim
        head_width = config.num_heads * config.value_head_dim
        with self.name_scope():
            if config.projections:
                self.q_proj = dense("q_proj_", options.get("query_dim"), query_width, config.bias.q_proj, dtype)
                self.k_proj = dense("k_proj_", options.get("key_dim"), key_width, config.bias.k_proj, dtype)
                self.v_proj = dense("v_proj_", options.get("value_dim"), value_width, config.bias.v_proj, dtype)
                self.out_proj = dense("out_proj_", head_width, config.output_dim, config.bias.out_proj, dtype)
            else:
                unchanged: Any = _unchanged
                self.q_proj = self.k_proj = self.v_proj = self.out_proj = unchanged
            if config.query_key_norm is None:
                self.q_norm: HeadNorm | Unnormed = unnormed
                self.k_norm: HeadNorm | Unnormed = unnormed
            else:
                q_size, k_size = config.norm_sizes
                self.q_norm = HeadNorm(config.query_key_norm, q_size, dtype=dtype, prefix="q_norm_")
                self.k_norm = HeadNorm(config.query_key_norm, k_size, dtype=dtype, prefix="k_norm_")
            if config.score_dim is None:
                self.score: DotScore | AdditiveScore = DotScore(config.softmax_scale)
            else:
                self.score = AdditiveScore(
                    config.head_dim, config.head_dim, config.score_dim, dtype=dtype, prefix="score_"
                )

    @property
    def config(self) -> AttentionConfig:
        """Return the layer's config, with the input widths of its parameters. SpecError before the first call."""
        return self._config.with_widths(*self._widths())

    def after_projection(
        self, queries: mx.np.ndarray, keys: mx.np.ndarray, values: mx.np.ndarray
    ) -> tuple[mx.np.ndarray, mx.np.ndarray, mx.np.ndarray]:
        """Return queries (B, H, Lq, d), keys (B, G, L, d), values (B, G, L, dv), unchanged; a subclass may change them.

        This runs before norms and rotary positions. `past_keys` and `past_values` are not passed to it.
        """
        return queries, keys, values

    def _project(self, call: Call[mx.np.ndarray], mask: Mask) -> tuple[mx.np.ndarray, mx.np.ndarray, mx.np.ndarray]:
        """Queries (B, H, Lq, d), new keys (B, G, L, d) and new values (B, G, L, dv): split, normed and turned."""
        config = self._config
        queries = split_heads(self.q_proj(call.queries), config.num_heads)  # (B, H, Lq, d)
        keys = split_heads(self.k_proj(zero_padding(call.keys, mask)), config.num_kv_heads)  # (B, G, L, d)
        values = split_heads(self.v_proj(zero_padding(call.values, mask)), config.num_kv_heads)  # (B, G, L, dv)
        queries, keys, values = self.after_projection(queries, keys, values)
        if config.parts:
            queries, keys = self._norm_and_turn(queries, keys, call)
        return queries, keys, values

    def _norm_and_turn(
        self, queries: mx.np.ndarray, keys: mx.np.ndarray, call: Call[mx.np.ndarray]
    ) -> tuple[mx.np.ndarray, mx.np.ndarray]:
        """Queries and new keys, (B, heads, L, d), normed before or after they turn with their positions."""
        rotary = self._config.rotary
        queries, keys = self.q_norm(queries, "before"), self.k_norm(keys, "before")
        tables = rotary_tables(call, rotary)
        queries, keys = rotate(queries, tables.queries, rotary), rotate(keys, tables.keys, rotary)
        return self.q_norm(queries, "after"), self.k_norm(keys, "after")

    def stages(self, call: Call[Any]) -> Stages[mx.np.ndarray]:
        """Return the Stages of a call, all arrays from queries to output."""
        config = self._config
        call, mask = self._placed(call)
        queries, new_keys, new_values = self._project(call, mask)  # (B, H, Lq, d), (B, G, L, d), (B, G, L, dv)
        keys = after_past(call.past_keys, new_keys, mask)  # (B, G, Lk, d)
        values = after_past(call.past_values, new_values, mask)  # (B, G, Lk, dv)
        similarity = self.score(queries, keys)  # (B, H, Lq, Lk)
        scores = add_bias(cap(similarity, config), mask)  # (B, H, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, H, Lq, Lk)
        kept = drop(weights, mask, config.dropout, mx.autograd.is_training())  # (B, H, Lq, Lk)
        heads = weighted_sum(kept, values)  # (B, H, Lq, dv)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Stages(queries, keys, values, scores, weights, heads, output)

    def attend(
        self, call: Call[Any], *, return_present: bool = False, query_block: int | None = None
    ) -> Attended[mx.np.ndarray]:
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
        self, call: Call[mx.np.ndarray], mask: Mask, return_present: bool, query_block: int | None
    ) -> tuple[mx.np.ndarray, tuple[mx.np.ndarray, mx.np.ndarray] | None]:
        """Heads (B, H, Lq, dv) and, if asked for, all keys and values; what else is made is freed before the output."""
        queries, new_keys, new_values = self._project(call, mask)  # (B, H, Lq, d), (B, G, L, d), (B, G, L, dv)
        keys = parts_of(call.past_keys, new_keys, mask, join=return_present)  # (B, G, Lk, d)
        values = parts_of(call.past_values, new_values, mask, join=return_present)  # (B, G, Lk, dv)
        operands = Operands(*self.score.operands(queries, keys), values)
        score, dropout = self.score.in_blocks().capped(self._config), self._config.dropout
        training = mx.autograd.is_training()
        heads = attend_in_blocks(operands, score, mask, dropout, training, query_block=query_block)
        return heads, (keys[0], values[0]) if return_present else None

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
        past_keys: mx.np.ndarray | None = None,
        past_values: mx.np.ndarray | None = None,
        positions: Any = None,
        rotary: Any = None,
        return_weights: bool = False,
        return_present: bool = False,
    ) -> mx.np.ndarray | tuple[Any, ...]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        Args:
            queries, keys, values: arrays of mx.np, mx.nd or NumPy, with the parameters' dtype and context.
            valid_lens, allowed, bias, causal, query_offset, window: see `mha_core.AttentionMask`;
                arrays of MXNet or NumPy, or lists. Note that `mx.np.array([3, 2])` is float32:
                integers need `dtype="int64"`, and booleans `dtype="bool"`.
            dropout_keep: bool (B, H, Lq, Lk), True where dropout keeps a weight; only in training,
                that is within `autograd.record()` or `autograd.train_mode()`.
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
            BackendError: a dtype that MXNet does not compute in.
        """
        mask = AttentionMask(valid_lens, allowed, bias, causal, query_offset, window)
        past = (past_keys, past_values)
        call = Call(queries, keys, values, mask, dropout_keep, *past, RotaryInputs.of(positions, rotary))
        made = self.stages(call) if return_weights else self.attend(call, return_present=return_present)
        return returned(made, return_weights=return_weights, return_present=return_present)

    def _placed(self, call: Call[Any]) -> tuple[Call[mx.np.ndarray], Mask]:
        """The call in arrays of MXNet, where it is computed, and its mask; SpecError if the layer cannot answer it."""
        call = placed(call, self)
        check_dropout_keep(call.dropout_keep, training=mx.autograd.is_training())
        return call, build_mask(call, self._spec())

    def _spec(self) -> LayerSpec:
        """The config, with the widths and the dtype of the parameters: `check_call` checks every call against it."""
        return LayerSpec.of(self._config, widths=self._widths(), dtype=expected_dtype(self))

    def _widths(self) -> Widths:
        """(Dq, Dk, Dv); None for a width that the first call decides."""
        if not self._config.projections:
            return self._config.query_dim, self._config.key_dim, self._config.value_dim
        return in_width(self.q_proj), in_width(self.k_proj), in_width(self.v_proj)


def _unchanged(x: mx.np.ndarray) -> mx.np.ndarray:
    """Return x: a layer without projections calls this in their place."""
    return x
