"""Multi-head attention as a Flax linen module: "kernel" (in, out) where the canonical name is "weight" (out, in)."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, fields
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.typing import Dtype, PrecisionLike
from jax import Array
from jax.typing import ArrayLike

from backends.jax.fast.attend import attend_in_blocks
from backends.jax.ops.attention import (
    add_bias,
    after_past,
    cap,
    drop,
    joined,
    masked_softmax,
    parts_of,
    weighted_sum,
    zero_padding,
)
from backends.jax.ops.framework import any_rank, check_fields, in_width, layer_dtype
from backends.jax.ops.heads import merge_heads, split_heads
from backends.jax.ops.masks import Mask, Window, build_mask, placed
from backends.jax.ops.query_key_norm import HeadNorm, Unnormed, unnormed
from backends.jax.ops.rotary import rotary_tables, rotate
from backends.jax.ops.scores import AdditiveScore, DotScore
from mha_core import AttentionConfig, AttentionMask, ProjectionBias, QueryKeyNorm, Rotary, RotaryInputs, weight_shapes
from mha_core.call.blocks import Operands
from mha_core.call.call import Call, LayerSpec, Widths
from mha_core.call.checks import check_dropout_keep
from mha_core.call.results import Attended, Stages, returned
from mha_core.config import ScoreName, check_size


class MultiHeadAttention(nn.Module):
    """Multi-head attention as `mha_core` defines it.

    Attributes:
        embed_dim, num_heads, and all further fields up to `query_key_norm`: see `mha_core.AttentionConfig`. Where
            `query_dim`, `key_dim` or `value_dim` is None, the first call decides it, as in every linen layer.
        dtype, param_dtype, precision: as in `flax.linen.Dense`, with two differences. If `dtype` is None, nothing is
            cast: inputs must have the dtype of the parameters. And the default precision is "highest", with which
            accelerators do not round float32 inside a matrix product.

    Raises:
        SpecError: the sizes contradict each other, or a later call does not fit them.

    >>> import jax
    >>> layer = MultiHeadAttention(100, 5, dropout=0.5)
    >>> queries, keys = jax.numpy.ones((2, 4, 100)), jax.numpy.ones((2, 6, 100))
    >>> variables = layer.init(jax.random.key(0), queries, keys, keys)
    >>> output, weights = layer.apply(variables, queries, keys, keys, jax.numpy.array([3, 2]), return_weights=True)
    >>> output.shape, weights.shape
    ((2, 4, 100), (2, 5, 4, 6))
    >>> dropped = layer.apply(variables, queries, keys, keys, deterministic=False, rngs={"dropout": jax.random.key(1)})
    """

    embed_dim: int
    num_heads: int
    dropout: float = 0.0
    bias: bool | Mapping[str, bool] | ProjectionBias = False
    _: KW_ONLY
    num_kv_heads: int | None = None
    head_dim: int | None = None
    value_head_dim: int | None = None
    query_dim: int | None = None
    key_dim: int | None = None
    value_dim: int | None = None
    output_dim: int | None = None
    score: ScoreName = "scaled_dot"
    scale: float | None = None
    score_dim: int | None = None
    softcap: float | None = None
    projections: bool = True
    rotary: Rotary | Mapping[str, Any] | bool | None = None
    query_key_norm: QueryKeyNorm | Mapping[str, Any] | str | None = None
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = "highest"

    def __post_init__(self) -> None:
        check_fields(self)
        self._config = AttentionConfig(**{field.name: getattr(self, field.name) for field in fields(AttentionConfig)})
        # Hashable, as jax.jit wants a module's fields to be.
        self.bias, self.rotary = self._config.bias, self._config.rotary
        self.query_key_norm = self._config.query_key_norm
        super().__post_init__()

    def config_of(self, variables: Mapping[str, Any]) -> AttentionConfig:
        """Return the layer's config. Input widths of None are read from `variables`. SpecError if one is not there."""
        return self._config.with_widths(*self._widths(variables))

    def setup(self) -> None:
        config = self._config
        settings = self.dtype, self.param_dtype, self.precision
        if config.projections:
            self.q_proj = nn.Dense(config.num_heads * config.head_dim, config.bias.q_proj, *settings)
            self.k_proj = nn.Dense(config.num_kv_heads * config.head_dim, config.bias.k_proj, *settings)
            self.v_proj = nn.Dense(config.num_kv_heads * config.value_head_dim, config.bias.v_proj, *settings)
            self.out_proj = nn.Dense(config.output_dim, config.bias.out_proj, *settings)
        else:
            unchanged: Any = _unchanged
            self.q_proj = self.k_proj = self.v_proj = self.out_proj = unchanged
        if config.query_key_norm is None:
            self.q_norm: HeadNorm | Unnormed = unnormed
            self.k_norm: HeadNorm | Unnormed = unnormed
        else:
            q_size, k_size = config.norm_sizes
            self.q_norm = HeadNorm(config.query_key_norm, q_size, param_dtype=self.param_dtype)
            self.k_norm = HeadNorm(config.query_key_norm, k_size, param_dtype=self.param_dtype)
        # `score` and `dropout` are fields. A name decides where parameters stand, and what a seed draws.
        if config.score_dim is None:
            self.score_layer: DotScore | AdditiveScore = DotScore(config.softmax_scale, precision=self.precision)
        else:
            self.score_layer = AdditiveScore(config.score_dim, *settings, name="score")
        self.dropout_layer = nn.Dropout(config.dropout, name="Dropout_0")

    def after_projection(self, queries: Array, keys: Array, values: Array) -> tuple[Array, Array, Array]:
        """Return queries (B, H, Lq, d), keys (B, G, L, d), values (B, G, L, dv), unchanged; a subclass may change them.

        This runs before norms and rotary positions. `past_keys` and `past_values` are not passed to it.
        """
        return queries, keys, values

    def _project(self, call: Call[Array], mask: Mask) -> tuple[Array, Array, Array]:
        """Queries (B, H, Lq, d), new keys (B, G, L, d) and new values (B, G, L, dv): split, normed and turned."""
        config = self._config
        queries = split_heads(self.q_proj(call.queries), config.num_heads)  # (B, H, Lq, d)
        keys = split_heads(self.k_proj(zero_padding(call.keys, mask)), config.num_kv_heads)  # (B, G, L, d)
        values = split_heads(self.v_proj(zero_padding(call.values, mask)), config.num_kv_heads)  # (B, G, L, dv)
        queries, keys, values = self.after_projection(queries, keys, values)
        if config.parts:
            queries, keys = self._norm_and_turn(queries, keys, call)
        return queries, keys, values

    def _norm_and_turn(self, queries: Array, keys: Array, call: Call[Array]) -> tuple[Array, Array]:
        """Queries and new keys, (B, heads, L, d), normed before or after they turn with their positions."""
        rotary = self._config.rotary
        queries, keys = self.q_norm(queries, "before"), self.k_norm(keys, "before")
        tables = rotary_tables(call, rotary, dtype=queries.dtype)
        queries, keys = rotate(queries, tables.queries, rotary), rotate(keys, tables.keys, rotary)
        return self.q_norm(queries, "after"), self.k_norm(keys, "after")

    @any_rank
    def stages(self, call: Call[Any], *, deterministic: bool = True) -> Stages[Array]:
        """Return the Stages of a call, all arrays from queries to output. Run it as `apply(..., method="stages")`."""
        config, training = self._config, not deterministic
        call, mask = self._placed(call, training)
        queries, new_keys, new_values = self._project(call, mask)  # (B, H, Lq, d), (B, G, L, d), (B, G, L, dv)
        keys = after_past(call.past_keys, new_keys, mask)  # (B, G, Lk, d)
        values = after_past(call.past_values, new_values, mask)  # (B, G, Lk, dv)
        similarity = self.score_layer(queries, keys)  # (B, H, Lq, Lk)
        scores = add_bias(cap(similarity, config), mask)  # (B, H, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, H, Lq, Lk)
        kept = drop(weights, mask, self.dropout_layer, training)  # (B, H, Lq, Lk)
        heads = weighted_sum(kept, values, precision=self.precision)  # (B, H, Lq, dv)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Stages(queries, keys, values, scores, weights, heads, output)

    @any_rank
    def attend(
        self,
        call: Call[Any],
        *,
        deterministic: bool = True,
        return_present: bool = False,
        query_block: int | None = None,
    ) -> Attended[Array]:
        """Return the same output (B, Lq, Do) as `stages`, but in memory that grows with Lq + Lk instead of Lq * Lk.

        Args:
            call, deterministic: the inputs of the layer, and whether dropout is off.
            return_present: also return the tuple of all keys (B, G, Lk, d) and values (B, G, Lk, dv).
            query_block: the most queries to compute at once. None: as many as fit in the memory budget.
        """
        query_block = None if query_block is None else check_size("query_block", query_block)
        training = not deterministic
        call, mask = self._placed(call, training)
        queries, new_keys, new_values = self._project(call, mask)  # (B, H, Lq, d), (B, G, L, d), (B, G, L, dv)
        keys = parts_of(call.past_keys, new_keys, mask, join=False)  # (B, G, Lk, d)
        values = parts_of(call.past_values, new_values, mask, join=False)  # (B, G, Lk, dv)
        operands = Operands(*self.score_layer.operands(queries, keys), values)
        score = self.score_layer.in_blocks().capped(self._config)
        heads = attend_in_blocks(
            operands, score, mask, self.dropout_layer, training, query_block=query_block, precision=self.precision
        )  # (B, H, Lq, dv)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        # Joined for the caller alone: who uses only the new rows, under jax.jit, has nothing joined.
        return Attended(output, (joined(keys), joined(values)) if return_present else None)

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
        past_keys: Array | None = None,
        past_values: Array | None = None,
        positions: Any = None,
        rotary: Any = None,
        return_weights: bool = False,
        return_present: bool = False,
        deterministic: bool = True,
    ) -> Array | tuple[Any, ...]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        Under `jax.jit`, `causal`, `window`, the two `return_...` and `deterministic` are static; nothing
        checks the values of traced `valid_lens` and positions. Those are looked up, which needs `rotary.max_positions`.

        Args:
            queries, keys, values: of one dtype, that of the parameters unless the layer has a `dtype`.
            valid_lens, allowed, bias, causal, query_offset, window: see `mha_core.AttentionMask`.
            dropout_keep: bool (B, H, Lq, Lk), True where dropout keeps a weight; not if deterministic.
            past_keys, past_values: (B, G, Lp, d), (B, G, Lp, dv), returned by `return_present` in earlier
                steps of decoding. They come before the new keys (B, Lk - Lp, Dk): Lk counts both, in masks too.
            positions: integers >= 0, (L,) or (B, L), in a layer with rotary positions. One array is for queries and new
                keys, a tuple has one for each. Default: query i is at query_offset + i, new key j at Lp + j.
            rotary: instead of positions, the tuple (cos, sin) of the rotation angles, each (L, r / 2) or (B, L, r / 2);
                or two such tuples, for queries and for new keys.
            return_weights: also return the weights (B, H, Lq, Lk), per head and before dropout.
            return_present: also return the tuple of all keys (B, G, Lk, d) and values (B, G, Lk, dv), the next past.
            deterministic: no dropout. If False, dropout draws from the rng "dropout".

        Returns:
            The output (B, Lq, Do). A tuple if more is asked for: the output, then the weights, then the present.

        Raises:
            SpecError: an argument does not fit; the message names it. No arithmetic is done before.
        """
        mask = AttentionMask(valid_lens, allowed, bias, causal, query_offset, window)
        past = (past_keys, past_values)
        call = Call(queries, keys, values, mask, dropout_keep, *past, RotaryInputs.of(positions, rotary))
        made = (
            self.stages(call, deterministic=deterministic)
            if return_weights
            else self.attend(call, deterministic=deterministic, return_present=return_present)
        )
        return returned(made, return_weights=return_weights, return_present=return_present)

    def _placed(self, call: Call[Any], training: bool) -> tuple[Call[Array], Mask]:
        """The call in arrays of JAX, and its mask; SpecError if the layer cannot answer it."""
        call = placed(call, self)
        check_dropout_keep(call.dropout_keep, training=training)
        return call, build_mask(call, self._spec())

    def _spec(self) -> LayerSpec:
        """The config, with the widths and the dtype of the parameters: `check_call` checks every call against it."""
        dtype = layer_dtype(self) if weight_shapes(self._config) else None
        return LayerSpec.of(self._config, widths=self._widths(self.variables), dtype=dtype)

    def _widths(self, variables: Mapping[str, Any]) -> Widths:
        """(Dq, Dk, Dv); None for a width that the first call decides."""
        if not self._config.projections:
            return self._config.query_dim, self._config.key_dim, self._config.value_dim
        return (
            in_width(self.query_dim, variables, "q_proj"),
            in_width(self.key_dim, variables, "k_proj"),
            in_width(self.value_dim, variables, "v_proj"),
        )


def _unchanged(x: Array) -> Array:
    """Return x: a layer without projections calls this in their place."""
    return x
