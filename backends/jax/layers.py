"""Multi-head attention as a Flax linen module: "kernel" (in, out) where the canonical name is "weight" (out, in)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, fields
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.typing import Dtype, PrecisionLike
from jax import Array
from jax.typing import ArrayLike

from backends.jax.fast.attend import Attended, attend_in_blocks
from backends.jax.ops.additive import AdditiveScore
from backends.jax.ops.attention import (
    Stages,
    add_bias,
    after_past,
    cap,
    dot_score,
    drop,
    joined,
    masked_softmax,
    weighted_sum,
    with_past,
    zero_padding,
)
from backends.jax.ops.framework import as_jax, check_fields, in_width, layer_dtype
from backends.jax.ops.heads import merge_heads, split_heads
from backends.jax.ops.masks import Mask, Widths, Window, build_mask, sources_of
from mha_core.call.arguments import settled
from mha_core.call.checks import check_dropout_keep
from mha_core.call.masks import AttentionMask
from mha_core.config import AttentionConfig, ProjectionBias, ScoreName, check_size
from mha_core.weights import weight_shapes


class MultiHeadAttention(nn.Module):
    """Multi-head attention as `mha_core` defines it.

    Attributes:
        embed_dim, num_heads, dropout, bias, and the keywords up to `score_dim`: see
            `mha_core.AttentionConfig`. Where `query_dim`, `key_dim` or `value_dim` is None, the
            first call decides it, as in every linen layer.
        dtype, param_dtype, precision: as in `flax.linen.Dense`, but for two things. Only a given
            `dtype` casts: without one, inputs must have the dtype of the parameters. And precision
            "highest" lets no accelerator round float32 inside a matrix product.

    Raises:
        SpecError: sizes that contradict each other; later, a call that does not fit them.

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
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = "highest"

    def __post_init__(self) -> None:
        check_fields(self)
        self._config = AttentionConfig(**{field.name: getattr(self, field.name) for field in fields(AttentionConfig)})
        self.bias = self._config.bias  # hashable, as jax.jit wants a module's fields to be
        super().__post_init__()

    def config_of(self, variables: Mapping[str, Any]) -> AttentionConfig:
        """The config with the widths that the parameters have. SpecError before `init` decided them."""
        return self._config.with_widths(*self._widths(variables))

    def stages(
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
        deterministic: bool = True,
    ) -> Stages:
        """All seven stages of one call: `layer.apply(variables, ..., method="stages")`, as for `__call__`."""
        config = self._config
        sources = AttentionMask(valid_lens, allowed, bias, causal, query_offset, window)
        past_keys, past_values = past = as_jax("past_keys", past_keys), as_jax("past_values", past_values)
        mask, q, k, v = self._project_and_split(queries, keys, values, sources, dropout_keep, *past, deterministic)
        k, v = after_past(past_keys, k, mask), after_past(past_values, v, mask)  # (B, G, Lk, d), (B, G, Lk, dv)
        scores = add_bias(cap(self._score(q, k), config.softcap), mask)  # (B, H, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, H, Lq, Lk)
        kept = drop(weights, mask, self._part("Dropout_0"), deterministic)  # (B, H, Lq, Lk)
        heads = weighted_sum(kept, v, self.precision)  # (B, H, Lq, dv)
        output = self._project("out_proj", merge_heads(heads))  # (B, Lq, Do)
        return Stages(q, k, v, scores, weights, heads, output)

    def attend(
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
        deterministic: bool = True,
        return_present: bool = False,
        query_block: int | None = None,
    ) -> Attended:
        """The output without the stages before it, block by block: what `__call__` does if weights aren't asked for.

        The arguments are those of `__call__`. `query_block` is how many queries to compute at once; None leaves
        it to a rule.
        """
        config = self._config
        query_block = None if query_block is None else check_size("query_block", query_block)
        sources = AttentionMask(valid_lens, allowed, bias, causal, query_offset, window)
        past_keys, past_values = past = as_jax("past_keys", past_keys), as_jax("past_values", past_values)
        mask, q, k, v = self._project_and_split(queries, keys, values, sources, dropout_keep, *past, deterministic)
        parts_k, parts_v = with_past(past_keys, k, mask), with_past(past_values, v, mask)  # one after the other
        present = (joined(parts_k), joined(parts_v)) if return_present else None  # (B, G, Lk, d), (B, G, Lk, dv)
        if present is not None:
            parts_k, parts_v = present[:1], present[1:]
        heads = attend_in_blocks(
            *self._compared(q, parts_k),
            parts_v,
            mask,
            self._part("Dropout_0"),
            deterministic,
            softcap=config.softcap,
            precision=self.precision,
            query_block=query_block,
        )  # (B, H, Lq, dv)
        return Attended(self._project("out_proj", merge_heads(heads)), present)  # (B, Lq, Do)

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
        return_weights: bool = False,
        return_present: bool = False,
        deterministic: bool = True,
    ) -> Array | tuple[Any, ...]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        Under `jax.jit`, `causal`, `window`, the two `return_...` and `deterministic` are static; nothing
        checks the values of traced `valid_lens`.

        Args:
            queries, keys, values: of one dtype, that of the parameters unless the layer has a `dtype`.
            valid_lens, allowed, bias, causal, query_offset, window: see `mha_core.AttentionMask`.
            dropout_keep: bool (B, H, Lq, Lk), the weights that dropout keeps; not if deterministic.
            past_keys, past_values: (B, G, Lp, d), (B, G, Lp, dv), what `return_present` gave in earlier
                steps of decoding. They stand before the new keys; Lk counts both, in masks too.
            return_weights: also return the weights (B, H, Lq, Lk), per head and before dropout.
            return_present: also return the pair keys (B, G, Lk, d), values (B, G, Lk, dv): the next past.
            deterministic: no dropout. If False, dropout draws from the rng "dropout".

        Returns:
            The output (B, Lq, Do), or a tuple: the output, then what was asked for in this order.

        Raises:
            SpecError: before any arithmetic, naming what does not fit.
        """
        sources: dict[str, Any] = {
            "valid_lens": valid_lens,
            "allowed": allowed,
            "bias": bias,
            "causal": causal,
            "query_offset": query_offset,
            "window": window,
            "dropout_keep": dropout_keep,
            "past_keys": past_keys,
            "past_values": past_values,
            "deterministic": deterministic,
        }
        if not return_weights:
            attended = self.attend(queries, keys, values, **sources, return_present=return_present)
            return attended if return_present else attended.output
        stages = self.stages(queries, keys, values, **sources)
        present = [(stages.keys, stages.values)] if return_present else []
        return (stages.output, stages.weights, *present)

    def _project_and_split(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        sources: AttentionMask,
        dropout_keep: ArrayLike | None,
        past_keys: Array | None,
        past_values: Array | None,
        deterministic: bool,
    ) -> tuple[Mask, Array, Array, Array]:
        """Check the call; the mask, queries (B, H, Lq, d), and the new keys (B, G, L, d) and values (B, G, L, dv)."""
        config = self._config
        queries, keys, values = as_jax("queries", queries), as_jax("keys", keys), as_jax("values", values)
        keep = as_jax("dropout_keep", settled("dropout_keep", dropout_keep))
        check_dropout_keep(keep, training=not deterministic)
        mask = build_mask(
            *(queries, keys, values, sources_of(queries, sources), keep, past_keys, past_values),
            num_heads=config.num_heads,
            widths=self._widths(self.variables),
            head_shapes=config.head_shapes,
            split=not config.projections,
            dtype=layer_dtype(self) if weight_shapes(config) else None,
        )
        q = split_heads(self._project("q_proj", queries), config.num_heads)
        k = split_heads(self._project("k_proj", zero_padding(keys, mask)), config.num_kv_heads)
        v = split_heads(self._project("v_proj", zero_padding(values, mask)), config.num_kv_heads)
        return mask, q, k, v

    @nn.compact
    def _part(self, name: str) -> Any:
        """The submodule of this name: a projection, the additive score, or dropout."""
        if name == "Dropout_0":
            return nn.Dropout(self.dropout, name=name)
        settings = self.dtype, self.param_dtype, self.precision
        if name == "score" and self._config.score_dim is not None:
            return AdditiveScore(self._config.score_dim, *settings, name=name)
        width, use_bias = weight_shapes(self._config)[f"{name}.weight"][0], getattr(self._config.bias, name)
        return nn.Dense(width, use_bias, *settings, name=name)

    def _project(self, name: str, x: Array) -> Array:
        return self._part(name)(x) if self._config.projections else x

    def _score(self, queries: Array, keys: Array) -> Array:
        if self._config.score == "additive":
            return self._part("score")(queries, keys)
        return dot_score(queries, keys, self._config.softmax_scale, self.precision)

    def _compared(self, queries: Array, keys: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...], Array | None]:
        """What the score compares: queries, keys in parts, and the vector of the additive score."""
        if self._config.score == "additive":
            return self._part("score").parts(queries, keys)
        return queries * self._config.softmax_scale, keys, None

    def _widths(self, variables: Mapping[str, Any]) -> Widths:
        if not self._config.projections:
            return self._config.query_dim, self._config.key_dim, self._config.value_dim
        declared = {"q_proj": self.query_dim, "k_proj": self.key_dim, "v_proj": self.value_dim}
        query_dim, key_dim, value_dim = (in_width(width, variables, name) for name, width in declared.items())
        return query_dim, key_dim, value_dim
