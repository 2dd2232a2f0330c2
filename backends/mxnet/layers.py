"""Multi-head attention as a Gluon block.

`save_parameters` writes the parameters under the canonical names of `mha_core.weights`, in its shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.mxnet.fast.attend import Attended, attend_in_blocks
from backends.mxnet.fast.block import Scoring
from backends.mxnet.ops.additive import AdditiveScore
from backends.mxnet.ops.attention import (
    Stages,
    add_bias,
    after_past,
    cap,
    dot_score,
    drop,
    masked_softmax,
    parts_of,
    weighted_sum,
    zero_padding,
)
from backends.mxnet.ops.framework import KeywordBlock, as_mxnet, context_of_call, dense, in_width, mx
from backends.mxnet.ops.heads import merge_heads, split_heads
from backends.mxnet.ops.masks import Mask, Widths, Window, build_mask, sources_of
from mha_core.call.arguments import settled
from mha_core.call.checks import check_dropout_keep
from mha_core.call.masks import AttentionMask
from mha_core.config import AttentionConfig, ProjectionBias, ScoreName, check_size


@mx.util.use_np
class MultiHeadAttention(KeywordBlock):
    """Multi-head attention as `mha_core` defines it.

    Args:
        embed_dim, num_heads, dropout, bias, and the keywords up to `score_dim`: see
            `mha_core.AttentionConfig`. Where `query_dim`, `key_dim` or `value_dim` is None, the
            first call decides it, as in `gluon.nn.Dense`.
        dtype: of the parameters: "float32" or "float64".
        kwargs: `prefix` and `params`, as in every Block.

    Raises:
        SpecError: sizes that contradict each other; later, a call that does not fit them.
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
        dtype: Any = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
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
        query_width, key_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        head_width, value_width = config.num_heads * config.value_head_dim, config.num_kv_heads * config.value_head_dim
        with self.name_scope():
            if config.projections:
                self.q_proj = dense("q_proj_", query_dim, query_width, config.bias.q_proj, dtype)
                self.k_proj = dense("k_proj_", key_dim, key_width, config.bias.k_proj, dtype)
                self.v_proj = dense("v_proj_", value_dim, value_width, config.bias.v_proj, dtype)
                self.out_proj = dense("out_proj_", head_width, config.output_dim, config.bias.out_proj, dtype)
            else:
                unchanged: Any = _unchanged
                self.q_proj = self.k_proj = self.v_proj = self.out_proj = unchanged
            if config.score_dim is not None:
                self.score = AdditiveScore(
                    config.head_dim, config.head_dim, config.score_dim, dtype=dtype, prefix="score_"
                )

    @property
    def config(self) -> AttentionConfig:
        """The config with the widths that the parameters have. SpecError before the first call decided them."""
        return self._config.with_widths(*self._widths())

    def stages(
        self, queries: mx.np.ndarray, keys: mx.np.ndarray, values: mx.np.ndarray, valid_lens: Any = None, **others: Any
    ) -> Stages:
        """All seven stages of one call; the arguments are those of `forward`."""
        q, k, v, mask, past = self._project(queries, keys, values, valid_lens, **others)
        k, v = (after_past(before, x, mask) for before, x in zip(past, (k, v), strict=True))  # (B, G, Lk, d or dv)
        scores = add_bias(cap(self._score(q, k), self._config.softcap), mask)  # (B, H, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, H, Lq, Lk)
        heads = weighted_sum(drop(weights, mask.keep, self._config.dropout), v)  # (B, H, Lq, dv)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Stages(q, k, v, scores, weights, heads, output)

    def attend(
        self,
        queries: mx.np.ndarray,
        keys: mx.np.ndarray,
        values: mx.np.ndarray,
        valid_lens: Any = None,
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
        k, v = (parts_of(before, x, mask, join=return_present) for before, x in zip(past, (k, v), strict=True))
        heads = attend_in_blocks(*self._scored(q, k), v, mask, self._scoring(), self._config.dropout, query_block)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Attended(output, (k[0], v[0]) if return_present else None)

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
        return_weights: bool = False,
        return_present: bool = False,
    ) -> mx.np.ndarray | tuple[Any, ...]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        Args:
            queries, keys, values: of the parameters' dtype and context; mx.np arrays, legacy ones, or NumPy's.
            valid_lens, allowed, bias, causal, query_offset, window: see `mha_core.AttentionMask`;
                arrays of MXNet or NumPy, or lists. Note that `mx.np.array([3, 2])` is float32:
                integers need `dtype="int64"`, and booleans `dtype="bool"`.
            dropout_keep: bool (B, H, Lq, Lk), the weights that dropout keeps; only in training,
                that is within `autograd.record()` or `autograd.train_mode()`.
            past_keys, past_values: (B, G, Lp, d), (B, G, Lp, dv), what `return_present` gave in earlier
                steps of decoding. They stand before the new keys; Lk counts both, in masks too.
            return_weights: also return the weights (B, H, Lq, Lk), per head and before dropout.
            return_present: also return the pair keys (B, G, Lk, d), values (B, G, Lk, dv): the next past.

        Returns:
            The output (B, Lq, Do), or a tuple: the output, then what was asked for in this order.

        Raises:
            SpecError: before any arithmetic, naming what does not fit.
            BackendError: a dtype that MXNet does not compute in.
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

    def _project(
        self,
        queries: mx.np.ndarray,
        keys: mx.np.ndarray,
        values: mx.np.ndarray,
        valid_lens: Any,
        *,
        dropout_keep: Any = None,
        past_keys: mx.np.ndarray | None = None,
        past_values: mx.np.ndarray | None = None,
        **sources: Any,
    ) -> tuple[mx.np.ndarray, mx.np.ndarray, mx.np.ndarray, Mask, tuple[mx.np.ndarray | None, mx.np.ndarray | None]]:
        """Check the call; queries (B, H, Lq, d), new keys and values (B, G, L, d or dv), mask, past."""
        config = self._config
        ctx = context_of_call(self, queries, keys, values)
        queries, keys, values = (as_mxnet(array, ctx) for array in (queries, keys, values))
        past_keys, past_values = as_mxnet(past_keys, ctx), as_mxnet(past_values, ctx)
        mask_sources = sources_of(queries, ctx, AttentionMask(valid_lens, **sources))
        keep = as_mxnet(settled("dropout_keep", dropout_keep), ctx)
        check_dropout_keep(keep, training=mx.autograd.is_training())
        mask = build_mask(
            *(queries, keys, values, mask_sources, keep, past_keys, past_values),
            num_heads=config.num_heads,
            head_shapes=config.head_shapes,
            split=not config.projections,
            **self._expected(),
        )
        q = split_heads(self.q_proj(queries), config.num_heads)
        k = split_heads(self.k_proj(zero_padding(keys, mask)), config.num_kv_heads)
        v = split_heads(self.v_proj(zero_padding(values, mask)), config.num_kv_heads)
        return q, k, v, mask, (past_keys, past_values)

    def _score(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> mx.np.ndarray:
        if self._config.score == "additive":
            return self.score(queries, keys)
        return dot_score(queries, keys, self._config.softmax_scale)

    def _scored(self, queries: mx.np.ndarray, keys: list[mx.np.ndarray]) -> tuple[mx.np.ndarray, list[mx.np.ndarray]]:
        """Queries and keys as `attend_in_blocks` takes them: scaled, or as wide as the additive score is."""
        if self._config.score == "additive":
            return self.score.query(queries), [self.score.key(part) for part in keys]
        return queries * self._config.softmax_scale, keys

    def _scoring(self) -> Scoring:
        vector = self.score.vector.data() if self._config.score == "additive" else None
        return Scoring(vector, self._config.softcap)

    def _widths(self) -> Widths:
        if not self._config.projections:
            return self._config.query_dim, self._config.key_dim, self._config.value_dim
        return in_width(self.q_proj), in_width(self.k_proj), in_width(self.v_proj)

    def _expected(self) -> dict[str, Any]:
        dtypes = [parameter.dtype for parameter in self.collect_params().values()]
        return {"widths": self._widths(), "layer_dtype": dtypes[0] if dtypes else None}


def _unchanged(x: mx.np.ndarray) -> mx.np.ndarray:
    """What stands in for the projections of a layer that has none."""
    return x
