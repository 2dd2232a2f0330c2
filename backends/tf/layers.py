"""Multi-head attention as a Keras layer, and the call that it has in common with the layers without heads.

Projections are Dense layers with canonical names; a Dense kernel is the transpose of a canonical weight.
No layer casts its inputs, as Keras would by default, and none reads Keras' implicit masks: one on the
queries passes on to the output, as through a Dense layer, and the arguments alone say who may attend.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from backends.tf.fast.attend import Attended, attend_in_blocks
from backends.tf.fast.scoring import Scoring, additive_scoring, dot_scoring
from backends.tf.ops.additive import AdditiveScore
from backends.tf.ops.attention import (
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
from backends.tf.ops.framework import as_tensor, describe, spec_errors_kept
from backends.tf.ops.heads import merge_heads, split_heads
from backends.tf.ops.masks import Mask, Shape, Widths, Window, allowed_keys, as_tensors, build_mask, input_widths
from mha_core.call.arguments import settled
from mha_core.call.checks import check_dropout_keep, check_one_dtype, describe_argument
from mha_core.call.masks import ARRAY_SOURCES, AttentionMask
from mha_core.config import AttentionConfig, ProjectionBias, ScoreName, check_dropout, check_size

_ARRAYS = ("queries", "keys", "values", *ARRAY_SOURCES, "dropout_keep", "past_keys", "past_values")
"""The arguments of a call that may be arrays."""


class AttentionLayer(keras.Layer):
    """What all attention layers share: all but `_attend`, which returns what `call` does, as a tuple in any case."""

    def __init__(self, dropout: float, widths: Widths = (None, None, None), **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self._allow_non_tensor_positional_args = True  # Keras would refuse a list as valid_lens
        self._convert_input_args = False  # Keras would turn np.True_ into a tensor; see `__call__`
        self._given_widths = self._widths = widths
        self.dropout = keras.layers.Dropout(check_dropout(dropout), autocast=False, dtype=self.dtype_policy)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`call`, as Keras calls it; it sees tensors in place of NumPy's arrays, and builds the layer for them."""
        with spec_errors_kept():
            args = tuple(map(as_tensor, args))
            kwargs = {name: as_tensor(given) if name in _ARRAYS else given for name, given in kwargs.items()}
            if not self.built:
                self._check_inputs(**dict(zip(("queries", "keys", "values"), args, strict=False)), **kwargs)
        return super().__call__(*args, **kwargs)

    def _check_inputs(self, queries: Any = None, keys: Any = None, values: Any = None, *_: Any, **__: Any) -> None:
        """Refuse what is no array, or of a dtype that TensorFlow has not: the layer could not be built for it."""
        given = {"queries": queries, "keys": keys, "values": values}
        specs = [describe_argument(name, array, describe) for name, array in given.items()]
        if any(isinstance(array, np.ndarray) for array in given.values()):
            check_one_dtype([spec.dtype for spec in specs])

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
        return_weights: bool = False,
        return_present: bool = False,
        training: bool | None = None,
    ) -> tf.Tensor | tuple[Any, ...]:
        """Attend from queries (B, Lq, Dq) to keys (B, Lk, Dk) and values (B, Lk, Dv).

        Args:
            queries, keys, values: of the layer's compute dtype (a layer without parameters: of any).
            valid_lens to window: see `mha_core.AttentionMask`; tensors, NumPy arrays or lists.
            dropout_keep: bool (B, H, Lq, Lk), the weights that dropout keeps; only in training.
            past_keys, past_values: (B, G, Lp, d), (B, G, Lp, dv), what `return_present` gave in earlier
                steps of decoding. They stand before the new keys; Lk counts both, in masks too.
            return_weights: also return the weights (B, H, Lq, Lk), per head and before dropout.
            return_present: also return the pair keys (B, G, Lk, d), values (B, G, Lk, dv): the next past.
            training: whether dropout acts. None: as in the layer around this one, or else False.

        Returns:
            The output (B, Lq, Do), or a tuple: the output, then what was asked for in this order. In a
            layer without heads the weights are (B, Lq, Lk); `allowed` and `bias` broadcast to that,
            `dropout_keep` has it, and there is no past and no present.

        Raises:
            SpecError: before any arithmetic, naming what does not fit.
        """
        sources = AttentionMask(valid_lens, allowed, bias, causal, query_offset, window)
        past = past_keys, past_values
        returned = self._attend(
            queries, keys, values, sources, dropout_keep, past, bool(training), return_weights, return_present
        )
        return returned if len(returned) > 1 else returned[0]


@keras.saving.register_keras_serializable(package="mha")
class MultiHeadAttention(AttentionLayer):
    """Multi-head attention as `mha_core` defines it.

    Args:
        embed_dim, num_heads, dropout, bias, and the keywords up to `score_dim`: see
            `mha_core.AttentionConfig`. Where `query_dim`, `key_dim` or `value_dim` is None, the
            first call decides it, as in every Keras layer.
        **kwargs: of every Keras layer, as `name`, `dtype` and `trainable`.

    Raises:
        SpecError: sizes that contradict each other; later, a call that does not fit them.

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
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout, (query_dim, key_dim, value_dim), **kwargs)
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

        def dense(name: str, units: int) -> Any:
            if not config.projections:
                return tf.identity
            return keras.layers.Dense(units, use_bias=getattr(config.bias, name), name=name, dtype=self.dtype_policy)

        self.q_proj = dense("q_proj", config.num_heads * config.head_dim)
        self.k_proj = dense("k_proj", config.num_kv_heads * config.head_dim)
        self.v_proj = dense("v_proj", config.num_kv_heads * config.value_head_dim)
        self.out_proj = dense("out_proj", config.output_dim)
        if config.score_dim is not None:
            self.score = AdditiveScore(config.score_dim, name="score", dtype=self.dtype_policy)

    @property
    def config(self) -> AttentionConfig:
        """The config with the widths that the parameters have. SpecError before the first call decided them."""
        return self._config.with_widths(*self._widths)

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
        if config.score_dim is not None:
            self.score.build((None, None, None, config.head_dim), (None, None, None, config.head_dim))

    def stages(
        self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, valid_lens: tf.Tensor | None = None, **others: Any
    ) -> Stages:
        """All seven stages of one call; the arguments are those of `call`."""
        q, k, v, mask, past, training = self._project(queries, keys, values, valid_lens, **others)
        k, v = (after_past(before, x, mask) for before, x in zip(past, (k, v), strict=True))  # (B, G, Lk, d or dv)
        scores = add_bias(cap(self._score(q, k), self._config.softcap), mask.bias)  # (B, H, Lq, Lk)
        weights = masked_softmax(scores, allowed_keys(mask))  # (B, H, Lq, Lk)
        heads = weighted_sum(drop(weights, mask, self.dropout, training), v)  # (B, H, Lq, dv)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Stages(q, k, v, scores, weights, heads, output)

    def attend(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        *,
        return_present: bool = False,
        query_block: int | None = None,
        **others: Any,
    ) -> Attended:
        """The output of `stages`, and the present if asked for, in memory that grows with Lq + Lk.

        Args:
            queries to valid_lens, others: those of `call`.
            return_present: also return the pair keys (B, G, Lk, d), values (B, G, Lk, dv).
            query_block: queries that are computed at once. None: as many as are fastest.
        """
        query_block = None if query_block is None else check_size("query_block", query_block)
        q, k, v, mask, past, training = self._project(queries, keys, values, valid_lens, **others)
        if return_present:
            k, v = (after_past(before, x, mask) for before, x in zip(past, (k, v), strict=True))
            past = None, None
        heads = attend_in_blocks(q, k, v, past, self._scoring(q), mask, self.dropout, training, query_block)
        output = self.out_proj(merge_heads(heads))  # (B, Lq, Do)
        return Attended(output, (k, v) if return_present else None)

    def _project(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None,
        *,
        dropout_keep: tf.Tensor | None = None,
        past_keys: tf.Tensor | None = None,
        past_values: tf.Tensor | None = None,
        training: bool | None = None,
        **sources: Any,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Mask, tuple[tf.Tensor | None, tf.Tensor | None], bool]:
        """Check the call; queries (B, H, Lq, d), new keys and values (B, G, L, d or dv), mask, past, training."""
        queries, keys, values = (as_tensor(array) for array in (queries, keys, values))
        past_keys, past_values = as_tensor(past_keys), as_tensor(past_values)
        if not self.built:
            self._check_inputs(queries, keys, values)
            self.build(queries.shape, keys.shape, values.shape)
        config, training = self._config, bool(training)
        mask_sources = as_tensors(AttentionMask(valid_lens, **sources), queries)
        keep = as_tensor(settled("dropout_keep", dropout_keep))
        check_dropout_keep(keep, training=training)
        mask = build_mask(
            *(queries, keys, values, mask_sources, keep, past_keys, past_values),
            num_heads=config.num_heads,
            widths=self._widths,
            head_shapes=config.head_shapes,
            split=not config.projections,
            dtype=self.compute_dtype if self.weights else None,
        )
        q = split_heads(self.q_proj(queries), config.num_heads)
        k = split_heads(self.k_proj(zero_padding(keys, mask)), config.num_kv_heads)
        v = split_heads(self.v_proj(zero_padding(values, mask)), config.num_kv_heads)
        return q, k, v, mask, (past_keys, past_values), training

    def _attend(self, queries, keys, values, sources, dropout_keep, past, training, return_weights, return_present):
        past_keys, past_values = past
        inputs = (queries, keys, values)
        others = {**vars(sources), "dropout_keep": dropout_keep, "training": training}
        others |= {"past_keys": past_keys, "past_values": past_values}
        if return_weights:
            stages = self.stages(*inputs, **others)
            returned = stages.output, stages.weights
            return (*returned, (stages.keys, stages.values)) if return_present else returned
        output, present = self.attend(*inputs, **others, return_present=return_present)
        return (output, present) if return_present else (output,)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this layer again, as JSON can hold them."""
        widths = dict(zip(("query_dim", "key_dim", "value_dim"), self._given_widths, strict=True))
        return {**super().get_config(), **self._config.to_dict(), **widths}

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        if self._config.score == "additive":
            return self.score(queries, keys)
        return dot_score(queries, keys, self._config.softmax_scale)

    def _scoring(self, queries: tf.Tensor) -> Scoring:
        """The same as `_score` with the softcap, for blocks."""
        if self._config.score == "additive":
            scoring = additive_scoring(self.score, queries.dtype)
        else:
            scoring = dot_scoring(self._config.softmax_scale)
        return scoring._replace(softcap=self._config.softcap)
