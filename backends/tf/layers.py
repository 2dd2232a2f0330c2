"""Multi-head attention as a Keras layer.

Projections are Dense layers with canonical names; a Dense kernel is the transpose of a canonical weight.
"""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from backends.tf.fast.attend import attend_in_blocks
from backends.tf.ops.attention import (
    add_bias,
    after_past,
    cap,
    drop,
    masked_softmax,
    parts_of,
    weighted_sum,
    zero_padding,
)
from backends.tf.ops.framework import Shape, spec_errors_kept
from backends.tf.ops.heads import merge_heads, split_heads
from backends.tf.ops.layer import AttentionLayer, input_widths, split_options
from backends.tf.ops.masks import Mask, Window, build_mask
from backends.tf.ops.products import Dense
from backends.tf.ops.query_key_norm import HeadNorm, Unnormed, unnormed
from backends.tf.ops.rotary import rotary_tables, rotate
from backends.tf.ops.scores import AdditiveScore, DotScore
from mha_core import AttentionConfig, AttentionMask, ProjectionBias, RotaryInputs
from mha_core.call.blocks import Operands
from mha_core.call.call import Call, LayerSpec
from mha_core.call.results import Attended, Stages, returned
from mha_core.config import check_size


@keras.saving.register_keras_serializable(package="mha")
class MultiHeadAttention(AttentionLayer):
    """Multi-head attention as `mha_core` defines it.

    Args:
        embed_dim, num_heads, dropout, bias: see `mha_core.AttentionConfig`.
        **options: the other keywords of `mha_core.AttentionConfig`, such as `num_kv_heads` and `score`. Where
            `query_dim`, `key_dim` or `value_dim` is not given, the first call decides it, as in every Keras layer.
            The keywords of every Keras layer (`name`, `dtype`, `trainable`) are taken too.

    Raises:
        SpecError: the sizes contradict each other, or a later call does not fit them.

    >>> import tensorflow as tf
    >>> layer = MultiHeadAttention(100, 5, dropout=0.5)
    >>> queries, keys = tf.random.normal((2, 4, 100)), tf.random.normal((2, 6, 100))
    >>> output, weights = layer(queries, keys, keys, tf.constant([3, 2]), return_weights=True)
    >>> output.shape, weights.shape
    (TensorShape([2, 4, 100]), TensorShape([2, 5, 4, 6]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool | Mapping[str, bool] | ProjectionBias = False,
        **options: Any,
    ) -> None:
        of_config, of_keras = split_options(options)
        widths = of_config.get("query_dim"), of_config.get("key_dim"), of_config.get("value_dim")
        super().__init__(dropout, widths, **of_keras)
        self._config = config = AttentionConfig(embed_dim, num_heads, dropout=dropout, bias=bias, **of_config)

        def dense(name: str, units: int) -> Any:
            if not config.projections:
                return tf.identity
            return Dense(units, use_bias=getattr(config.bias, name), name=name, dtype=self.dtype_policy)

        self.q_proj = dense("q_proj", config.num_heads * config.head_dim)
        self.k_proj = dense("k_proj", config.num_kv_heads * config.head_dim)
        self.v_proj = dense("v_proj", config.num_kv_heads * config.value_head_dim)
        self.out_proj = dense("out_proj", config.output_dim)
        if config.query_key_norm is None:
            self.q_norm: HeadNorm | Unnormed = unnormed
            self.k_norm: HeadNorm | Unnormed = unnormed
        else:
            q_size, k_size = config.norm_sizes
            self.q_norm = HeadNorm(config.query_key_norm, q_size, name="q_norm", dtype=self.variable_dtype)
            self.k_norm = HeadNorm(config.query_key_norm, k_size, name="k_norm", dtype=self.variable_dtype)
        if config.score_dim is None:
            self.score: DotScore | AdditiveScore = DotScore(config.softmax_scale)
        else:
            self.score = AdditiveScore(config.score_dim, name="score", dtype=self.dtype_policy)

    @property
    def config(self) -> AttentionConfig:
        """Return the layer's config, with the input widths of its parameters. SpecError before the first call."""
        return self._config.with_widths(*self._widths)

    def after_projection(
        self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return queries (B, H, Lq, d), keys (B, G, L, d), values (B, G, L, dv), unchanged; a subclass may change them.

        This runs before norms and rotary positions. `past_keys` and `past_values` are not passed to it.
        """
        return queries, keys, values

    def _project(self, call: Call[tf.Tensor], mask: Mask) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Queries (B, H, Lq, d), new keys (B, G, L, d) and new values (B, G, L, dv): split, normed and turned."""
        config = self._config
        queries = split_heads(self.q_proj(call.queries), config.num_heads)  # (B, H, Lq, d)
        keys = split_heads(self.k_proj(zero_padding(call.keys, mask)), config.num_kv_heads)  # (B, G, L, d)
        values = split_heads(self.v_proj(zero_padding(call.values, mask)), config.num_kv_heads)  # (B, G, L, dv)
        queries, keys, values = self.after_projection(queries, keys, values)
        if config.parts:
            queries, keys = self._norm_and_turn(queries, keys, call)
        return queries, keys, values

    def _norm_and_turn(self, queries: tf.Tensor, keys: tf.Tensor, call: Call[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Queries and new keys, (B, heads, L, d), normed before or after they turn with their positions."""
        rotary = self._config.rotary
        queries, keys = self.q_norm(queries, "before"), self.k_norm(keys, "before")
        tables = rotary_tables(call, rotary)
        queries, keys = rotate(queries, tables.queries, rotary), rotate(keys, tables.keys, rotary)
        return self.q_norm(queries, "after"), self.k_norm(keys, "after")

    def stages(self, call: Call[Any], *, training: bool | None = None) -> Stages[tf.Tensor]:
        """Return the Stages of a call, all arrays from queries to output; dropout acts only in training."""
        config = self._config
        call, mask = self._placed(call, training)
        queries, new_keys, new_values = self._project(call, mask)  # (B, H, Lq, d), (B, G, L, d), (B, G, L, dv)
        keys = after_past(call.past_keys, new_keys, mask)  # (B, G, Lk, d)
        values = after_past(call.past_values, new_values, mask)  # (B, G, Lk, dv)
        similarity = self.score(queries, keys)  # (B, H, Lq, Lk)
        scores = add_bias(cap(similarity, config), mask)  # (B, H, Lq, Lk)
        weights = masked_softmax(scores, mask)  # (B, H, Lq, Lk)
        kept = drop(weights, mask, self.dropout, bool(training))  # (B, H, Lq, Lk)
        heads = weighted_sum(kept, values)  # (B, H, Lq, dv)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Stages(queries, keys, values, scores, weights, heads, output)

    def attend(
        self,
        call: Call[Any],
        *,
        return_present: bool = False,
        query_block: int | None = None,
        training: bool | None = None,
    ) -> Attended[tf.Tensor]:
        """Return the same output (B, Lq, Do) as `stages`, but in memory that grows with Lq + Lk instead of Lq * Lk.

        Args:
            call, training: the inputs of the layer, and whether dropout acts.
            return_present: also return the tuple of all keys (B, G, Lk, d) and values (B, G, Lk, dv).
            query_block: how many queries are computed at once. None: the fastest number.
        """
        query_block = None if query_block is None else check_size("query_block", query_block)
        call, mask = self._placed(call, training)
        queries, new_keys, new_values = self._project(call, mask)  # (B, H, Lq, d), (B, G, L, d), (B, G, L, dv)
        join = return_present or queries.shape[2] != 1  # one query reads past and new keys once each, where they are
        keys = parts_of(call.past_keys, new_keys, mask, join=join)  # (B, G, Lk, d)
        values = parts_of(call.past_values, new_values, mask, join=join)  # (B, G, Lk, dv)
        operands = Operands(*self.score.operands(queries, keys), values)
        score = self.score.in_blocks().capped(self._config)
        heads = attend_in_blocks(operands, score, mask, self.dropout, bool(training), query_block=query_block)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Attended(output, (keys[0], values[0]) if return_present else None)

    @spec_errors_kept()
    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        *,
        allowed: tf.Tensor | None = None,
        bias: tf.Tensor | None = None,
        causal: bool = False,
        query_offset: int | tf.Tensor = 0,
        window: Window | None = None,
        dropout_keep: tf.Tensor | None = None,
        past_keys: tf.Tensor | None = None,
        past_values: tf.Tensor | None = None,
        positions: Any = None,
        rotary: Any = None,
        return_weights: bool = False,
        return_present: bool = False,
        training: bool | None = None,
    ) -> tf.Tensor | tuple[Any, ...]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        Args:
            queries, keys, values: tensors or NumPy arrays of the layer's compute dtype. Without parameters the layer
                takes any dtype.
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
            training: whether dropout acts. None: as in the layer that calls this one; False if there is none.

        Returns:
            The output (B, Lq, Do). A tuple if more is asked for: the output, then the weights, then the present.

        Raises:
            SpecError: an argument does not fit; the message names it. No arithmetic is done before.
        """
        mask = AttentionMask(valid_lens, allowed, bias, causal, query_offset, window)
        past = (past_keys, past_values)
        call = Call(queries, keys, values, mask, dropout_keep, *past, RotaryInputs.of(positions, rotary))
        if return_weights:
            made: Stages[tf.Tensor] | Attended[tf.Tensor] = self.stages(call, training=training)
        else:
            made = self.attend(call, return_present=return_present, training=training)
        return returned(made, return_weights=return_weights, return_present=return_present)

    @spec_errors_kept()
    def build(self, queries_shape: Shape = None, keys_shape: Shape = None, values_shape: Shape = None) -> None:
        """Make the parameters for inputs of these shapes; Keras calls this before the first call."""
        if self._config.projections:
            self._widths = input_widths(queries_shape, keys_shape, values_shape, self._given_widths)
            config = self.config
            self.q_proj.build((None, None, config.query_dim))
            self.k_proj.build((None, None, config.key_dim))
            self.v_proj.build((None, None, config.value_dim))
            self.out_proj.build((None, None, config.num_heads * config.value_head_dim))
        else:
            config = self._config
            self._widths = config.query_dim, config.key_dim, config.value_dim
        for norm in (self.q_norm, self.k_norm):
            if isinstance(norm, HeadNorm):
                norm.build()
        self.score.build((None, None, None, config.head_dim), (None, None, None, config.head_dim))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments that make this layer again, as a dict for JSON."""
        widths = dict(zip(("query_dim", "key_dim", "value_dim"), self._given_widths, strict=True))
        return {**super().get_config(), **self._config.to_dict(), **widths}

    def _placed(self, call: Call[Any], training: bool | None) -> tuple[Call[tf.Tensor], Mask]:
        """The call in tensors, and its mask; SpecError if the layer cannot answer it."""
        call = self._in_tensors(call, training)
        return call, build_mask(call, self._spec())

    def _spec(self) -> LayerSpec:
        """The config, with the widths and the dtype of the parameters: `check_call` checks every call against it."""
        return LayerSpec.of(self._config, widths=self._widths, dtype=self._dtype())
