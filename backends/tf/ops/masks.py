"""The mask of one call in TensorFlow; the rules stand in `mha_core.call.masks`."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import ops

from backends.tf.ops.framework import as_tensor, describe
from mha_core.call.blocks import Reach, reach
from mha_core.call.call import Call, LayerSpec
from mha_core.call.checks import OFFSETS, check_call, check_numbers
from mha_core.call.masks import AttentionMask
from mha_core.call.sizes import ArraySpec, CallSizes
from mha_core.errors import SpecError
from mha_core.heads import HeadShapes

Shape = tuple[int | None, ...] | None  # None where Keras saw no array
Widths = tuple[int | None, int | None, int | None]
Window = tuple[int | None, int | None]


class Span(NamedTuple):
    """`size` neighbours from `start` on, of the queries or of the keys; tensors where tracing knows no numbers."""

    start: Any
    size: Any


class Mask(NamedTuple):
    """What the sources of a mask come to, in memory that grows with Lq + Lk.

    query_len, key_len: numbers where they are known, tensors while tracing.
    first, stop: int64, broadcastable to (B, Lq): `valid_lens`, `causal` and `window` leave key j iff
        first <= j < stop; None without any of them.
    known: the same as far as numbers are known, in NumPy: no query reaches further than it says. None without
        any of them.
    exact: whether `known` is all that `first` and `stop` say.
    allowed, bias: as they were given, with four axes that broadcast to (B, H, Lq, Lk); None without one.
    padding, past_padding: bool, broadcastable to (B, Lk - Lp) and (B, Lp): new keys, and keys of the
        past, that nobody can attend to; None if there are none.
    keep: bool (B, H, Lq, Lk), the dropout keep-mask; None without one.
    """

    query_len: Any
    key_len: Any
    first: tf.Tensor | None
    stop: tf.Tensor | None
    known: Reach | None
    exact: bool
    allowed: tf.Tensor | None
    bias: tf.Tensor | None
    padding: tf.Tensor | None
    past_padding: tf.Tensor | None
    keep: tf.Tensor | None

    @property
    def excludes(self) -> bool:
        """Whether any source can exclude a key."""
        return any(source is not None for source in (self.first, self.allowed, self.bias))


def as_tensors(mask: AttentionMask, queries: Any) -> AttentionMask:
    """The mask with a tensor in place of every list, number and array of NumPy."""
    spec = describe(queries) if hasattr(queries, "dtype") else None
    if spec is not None:
        mask = mask.with_bias_in(spec.dtype, as_tensor)
    return mask.map_arrays(lambda _, array: as_tensor(array))


def input_widths(queries: Shape, keys: Shape, values: Shape, given: Widths) -> Widths:
    """The (Dq, Dk, Dv) of a layer built for inputs of these shapes, which must fit the widths that were given."""
    specs = []
    for name, shape in (("queries", queries), ("keys", keys), ("values", values)):
        if shape is None:
            raise SpecError(f"{name} must be a tensor or an array.")
        specs.append(ArraySpec(tuple(shape), "float32"))  # the dtype is the call's affair
    check_call(Call(specs[0], specs[1], specs[2]), LayerSpec(widths=given))
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

    `mask` holds tensors; `head_shapes` and `split` are those of `mha_core.call.checks.check_call`; `dtype` is
    that of the layer's parameters, None if it has none. A size that is not known while a function is
    traced is not checked, and neither are the values of `valid_lens` then.
    """
    call = Call(queries, keys, values, mask, dropout_keep, past_keys, past_values)
    sizes = check_call(call, LayerSpec(num_heads, widths, head_shapes, split, dtype), describe)
    known = replace(
        mask,
        valid_lens=None if mask.valid_lens is None else _static(mask.valid_lens),
        query_offset=_static(mask.query_offset),
    )
    check_numbers(known.valid_lens, known.query_offset, sizes.key_len)

    # Tensors where tracing knows no number.
    query_len, new_len = ops.shape(queries)[-2], ops.shape(keys)[-2]
    past_len = 0 if past_keys is None else ops.shape(past_keys)[2]
    key_len = past_len + new_len
    allowed, bias = (None if source is None else _as_rank_4(source) for source in (mask.allowed, mask.bias))
    if mask.valid_lens is not None:
        mask = replace(mask, valid_lens=_within(mask.valid_lens, (0, key_len)))
    mask = replace(mask, query_offset=_within(mask.query_offset, OFFSETS))
    first, stop, reached, exact = _interval(mask, known, query_len, key_len)
    padding = None
    if mask.valid_lens is not None:
        lens = mask.valid_lens
        longest = lens if lens.shape.rank == 1 else tf.reduce_max(lens, axis=1)
        padding = _arange(key_len) >= longest[:, tf.newaxis]
    if allowed is not None:
        unused = ~tf.reduce_any(allowed, axis=(1, 2))
        padding = unused if padding is None else padding | unused
    past_padding = None
    if padding is not None and past_keys is not None:
        padding = tf.broadcast_to(padding, (ops.shape(padding)[0], key_len))
        padding, past_padding = padding[:, past_len:], padding[:, :past_len]
    return Mask(query_len, key_len, first, stop, reached, exact, allowed, bias, padding, past_padding, dropout_keep)


def allowed_keys(mask: Mask, queries: Span | None = None, keys: Span | None = None) -> tf.Tensor | None:
    """Bool, broadcastable to (B, H, Lq, Lk) of these queries and keys: True = may attend. None if all may."""
    sources = []
    if mask.first is not None and not _is_open(mask, queries, keys):
        first, stop = (cut_source(bound, 1, queries)[:, tf.newaxis, :, tf.newaxis] for bound in (mask.first, mask.stop))
        position = _arange(mask.key_len) if keys is None else tf.cast(keys.start, tf.int64) + _arange(keys.size)
        sources.append((position >= first) & (position < stop))
    if mask.allowed is not None:
        sources.append(cut_source(cut_source(mask.allowed, 2, queries), 3, keys))
    if mask.bias is not None:
        bias = cut_source(cut_source(mask.bias, 2, queries), 3, keys)
        sources.append(tf.not_equal(bias, -float("inf")))
    return reduce(tf.logical_and, sources) if sources else None


def restricted(mask: Mask, items: Span | None, heads: Span | None) -> Mask:
    """The mask of some items and heads; `padding` stays as it is."""

    def part(source: tf.Tensor | None) -> tf.Tensor | None:
        return None if source is None else cut_source(cut_source(source, 0, items), 1, heads)

    bounds = (None if bound is None else cut_source(bound, 0, items) for bound in (mask.first, mask.stop))
    known = mask.known
    if known is not None and items is not None:
        rows = slice(items.start, items.start + items.size)
        known = Reach(*(bound if len(bound) == 1 else bound[rows] for bound in known))
    first, stop = bounds
    return mask._replace(
        first=first, stop=stop, known=known, allowed=part(mask.allowed), bias=part(mask.bias), keep=part(mask.keep)
    )


def reachable(mask: Mask, queries: Span) -> Span | None:
    """The keys that any of these queries may reach, as far as numbers are known; None for all."""
    if mask.known is None or not isinstance(queries.start, int) or not isinstance(queries.size, int):
        return None
    keys = mask.known.keys(slice(None), slice(queries.start, queries.start + queries.size))
    return None if keys == slice(0, mask.key_len) else Span(keys.start, keys.stop - keys.start)


def _is_open(mask: Mask, queries: Span | None, keys: Span | None) -> bool:
    """Whether it is known that lengths and positions leave all of these keys to each of these queries."""
    spans = queries or Span(0, mask.query_len), keys or Span(0, mask.key_len)
    if mask.known is None or not mask.exact or not all(isinstance(start, int) for span in spans for start in span):
        return False
    return mask.known.is_open(slice(None), *(slice(start, start + size) for start, size in spans))


def cut(x: tf.Tensor, axis: int, span: Span | None) -> tf.Tensor:
    """The span of an axis, None for all."""
    length = x.shape[axis]
    if span is None:
        return x
    start, size = span
    if length is not None and isinstance(start, int) and isinstance(size, int):
        return x if size == length else x[(slice(None),) * axis + (slice(start, start + size),)]
    begin, sizes = [0] * x.shape.rank, list(ops.shape(x))
    begin[axis], sizes[axis] = start, size
    return tf.slice(x, begin, sizes)


def cut_source(source: tf.Tensor, axis: int, span: Span | None) -> tf.Tensor:
    """The span of an axis, or all of it if it has, or turns out to have, one element, which stands for any."""
    if source.shape[axis] == 1:
        return source
    if span is not None and source.shape[axis] is None:
        is_single = tf.equal(tf.shape(source)[axis], 1)
        span = Span(*(tf.where(is_single, one, many) for one, many in zip((0, 1), span, strict=True)))
    return cut(source, axis, span)


def _static(integers: Any) -> Any:
    """The numbers, in NumPy, where tracing knows them; an integer of Python as it is."""
    return integers if isinstance(integers, (int, np.ndarray)) else tf.get_static_value(integers)


def _within(integers: Any, limits: tuple[Any, Any]) -> Any:
    """The same in int64; of numbers that could not be looked at, the nearest within the limits."""
    if isinstance(integers, int):
        return integers
    lowest, highest = (tf.cast(limit, tf.int64) for limit in limits)
    wide = tf.cast(integers, tf.int64)
    if integers.dtype == tf.uint64:  # beyond int64 it becomes negative
        wide = tf.where(wide < 0, highest, wide)
    return tf.clip_by_value(wide, lowest, highest)


def _interval(
    mask: AttentionMask, known_sources: AttentionMask, query_len: int | tf.Tensor, key_len: int | tf.Tensor
) -> tuple[tf.Tensor | None, tf.Tensor | None, Reach | None, bool]:
    """`first`, `stop`, `known` and `exact` of a Mask."""
    if mask.valid_lens is None and not mask.has_positions:
        return None, None, None, True
    known, exact = _known_reach(mask, known_sources, query_len, key_len)
    if known is not None and exact:
        return tf.constant(known.first), tf.constant(known.stop), known, True
    first, stop = tf.zeros((1, 1), tf.int64), tf.cast(key_len, tf.int64)[tf.newaxis, tf.newaxis]
    if mask.valid_lens is not None:
        lens = mask.valid_lens
        stop = tf.minimum(stop, lens[:, tf.newaxis] if lens.shape.rank == 1 else lens)
    if mask.has_positions:
        position = tf.reshape(tf.cast(mask.query_offset, tf.int64), (-1, 1)) + _arange(query_len)
        left, right = mask.limits
        if right is not None:
            stop = tf.minimum(stop, position + right + 1)
        if left is not None:
            first = tf.maximum(first, position - left)
    return first, stop, known, False


def _known_reach(mask: AttentionMask, known: AttentionMask, query_len: Any, key_len: Any) -> tuple[Reach | None, bool]:
    """What the sources leave whose numbers are known, and whether those are all."""
    if not isinstance(query_len, int) or not isinstance(key_len, int):
        return None, False
    has_offset = known.query_offset is not None or not mask.has_positions
    exact = (known.valid_lens is not None or mask.valid_lens is None) and has_offset
    if not has_offset:
        known = replace(known, query_offset=0, causal=False, window=None)
    return reach(known, CallSizes(None, query_len, key_len)), exact


def _arange(length: int | tf.Tensor) -> tf.Tensor:
    # int64: TensorFlow keeps int32 arithmetic on the host, even beside a GPU.
    return tf.range(tf.cast(length, tf.int64), dtype=tf.int64)


def _as_rank_4(array: tf.Tensor) -> tf.Tensor:
    return array[(tf.newaxis,) * (4 - array.shape.rank) + (...,)]
