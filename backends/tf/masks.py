"""The mask of one call in TensorFlow; the rules stand in `mha_core.masks`."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf
from keras import ops

from backends.tf.framework import describe
from mha_core.checks import ArraySpec, check_call, check_valid_lens
from mha_core.errors import SpecError
from mha_core.heads import HeadShapes
from mha_core.masks import AttentionMask

Shape = tuple[int | None, ...] | None  # None where Keras saw no array
Widths = tuple[int | None, int | None, int | None]
Window = tuple[int | None, int | None]


class Mask(NamedTuple):
    """What the sources of a mask come to.

    allowed: bool, broadcastable to (B, H, Lq, Lk); True = may attend.
    padding, past_padding: bool, broadcastable to (B, Lk - Lp) and (B, Lp): new keys, and keys of the
        past, that nobody can attend to; None if there are none.
    bias: broadcastable to (B, H, Lq, Lk), 0 where it only excluded; None without one.
    keep: bool (B, H, Lq, Lk), the dropout keep-mask; None without one.
    """

    allowed: tf.Tensor
    padding: tf.Tensor | None
    past_padding: tf.Tensor | None
    bias: tf.Tensor | None
    keep: tf.Tensor | None


def as_tensors(mask: AttentionMask, queries: tf.Tensor) -> AttentionMask:
    """The mask with a tensor in place of every tensor, NumPy array or list."""

    def convert(name: str, array: Any) -> tf.Tensor:
        # A list has no dtype of its own; an array has one, and keeps it.
        is_list = isinstance(array, (list, tuple))
        return tf.convert_to_tensor(array, getattr(queries, "dtype", None) if is_list and name == "bias" else None)

    return mask.map_arrays(convert)


def input_widths(queries: Shape, keys: Shape, values: Shape, given: Widths) -> Widths:
    """The (Dq, Dk, Dv) of a layer built for inputs of these shapes, which must fit the widths that were given."""
    specs = []
    for name, shape in (("queries", queries), ("keys", keys), ("values", values)):
        if shape is None:
            raise SpecError(f"{name} must be a tensor or an array.")
        specs.append(ArraySpec(tuple(shape), "float32"))  # the dtype is the call's affair
    check_call(queries=specs[0], keys=specs[1], values=specs[2], mask=AttentionMask(), num_heads=1, widths=given)
    dq, dk, dv = (spec.shape[2] if width is None else width for spec, width in zip(specs, given, strict=True))
    return dq, dk, dv


def build_mask(
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    mask: AttentionMask,
    dropout_keep: tf.Tensor | None,
    past_keys: tf.Tensor | None = None,
    past_values: tf.Tensor | None = None,
    *,
    num_heads: int,
    widths: Widths = (None, None, None),
    head_shapes: HeadShapes | None = None,
    split: bool = False,
    dtype: str | None = None,
) -> Mask:
    """Check the whole call (SpecError), then combine the sources of its mask with AND.

    `mask` holds tensors; `head_shapes` and `split` are those of `mha_core.checks.check_call`; `dtype` is
    that of the layer's parameters, None if it has none. A size that is not known while a function is
    traced is not checked, and neither are the values of `valid_lens` then.
    """
    sizes = check_call(
        queries=queries,
        keys=keys,
        values=values,
        mask=mask,
        dropout_keep=dropout_keep,
        past_keys=past_keys,
        past_values=past_values,
        num_heads=num_heads,
        widths=widths,
        head_shapes=head_shapes,
        split=split,
        layer_dtype=dtype,
        describe=describe,
    )
    if mask.valid_lens is not None and sizes.key_len is not None:
        known = tf.get_static_value(mask.valid_lens)
        if known is not None:
            check_valid_lens(known, sizes.key_len)

    # Tensors where tracing knows no number.
    query_len, new_len = ops.shape(queries)[-2], ops.shape(keys)[-2]
    past_len = 0 if past_keys is None else ops.shape(past_keys)[2]
    key_len = past_len + new_len
    allowed = tf.ones((1, 1, 1, key_len), tf.bool)
    padding = None
    for source in (_within_valid_lens(mask, key_len), mask.allowed):
        if source is not None:
            source = _as_rank_4(source)
            allowed &= source
            unused = ~tf.reduce_any(source, axis=(1, 2))
            padding = unused if padding is None else padding | unused
    bias = None
    if mask.bias is not None:
        bias = _as_rank_4(mask.bias)
        excluded = tf.equal(bias, -float("inf"))
        allowed &= ~excluded
        bias = tf.where(excluded, tf.zeros((), bias.dtype), bias)
    if mask.has_positions:
        allowed &= _within_reach(mask, query_len, key_len)
    past_padding = None
    if padding is not None and past_keys is not None:
        padding = tf.broadcast_to(padding, (ops.shape(padding)[0], key_len))
        padding, past_padding = padding[:, past_len:], padding[:, :past_len]
    return Mask(allowed, padding, past_padding, bias, dropout_keep)


def _within_valid_lens(mask: AttentionMask, key_len: int | tf.Tensor) -> tf.Tensor | None:
    """(B, 1, 1 or Lq, Lk)."""
    if mask.valid_lens is None:
        return None
    lens = mask.valid_lens[:, tf.newaxis] if mask.valid_lens.shape.rank == 1 else mask.valid_lens
    return _arange(key_len) < tf.cast(lens, tf.int64)[:, tf.newaxis, :, tf.newaxis]


def _within_reach(mask: AttentionMask, query_len: int | tf.Tensor, key_len: int | tf.Tensor) -> tf.Tensor:
    """(1 or B, 1, Lq, Lk): `causal` and `window`."""
    offset = tf.reshape(tf.cast(mask.query_offset, tf.int64), (-1, 1, 1, 1))
    position = offset + _arange(query_len)[:, tf.newaxis]
    ahead = _arange(key_len) - position  # how far the key stands ahead of the query
    left, right = mask.window or (None, None)
    reach = ahead <= 0 if mask.causal else tf.ones_like(ahead, tf.bool)
    if left is not None:
        reach &= ahead >= -left
    if right is not None:
        reach &= ahead <= right
    return reach


def _arange(length: int | tf.Tensor) -> tf.Tensor:
    # int64: TensorFlow keeps int32 arithmetic on the host, even beside a GPU.
    return tf.range(tf.cast(length, tf.int64), dtype=tf.int64)


def _as_rank_4(array: tf.Tensor) -> tf.Tensor:
    return array[(tf.newaxis,) * (4 - array.shape.rank) + (...,)]
