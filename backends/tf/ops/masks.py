"""The mask of one call in TensorFlow; the rules stand in `mha_core.call.masks`."""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from backends.tf.ops.cuts import Span, cut, cut_source
from backends.tf.ops.framework import arange, as_tensor, describe, numbers, shape_of, within
from mha_core.call.arguments import CallSizes
from mha_core.call.blocks import Block, Reach, reach
from mha_core.call.call import Call, LayerSpec
from mha_core.call.checks import OFFSETS, check_call, check_numbers
from mha_core.call.masks import AttentionMask

Window = tuple[int | None, int | None]
Part = Block[Span | None]
"""A block of scores, as a span of each axis; None for the whole axis."""


class Mask(NamedTuple):
    """The mask of a call or of a part (`Block`) of its scores. A field is None if its argument is not given.

    Its memory grows with Lq + Lk, apart from the arrays that the caller gave.

    query_len, key_len: Lq and Lk (past and new keys): integers, or scalar tensors if unknown while tracing.
    first, stop: int64, broadcastable to (B, Lq): `valid_lens`, `causal` and `window` allow key j iff first <= j < stop.
    reach: NumPy arrays, known even while tracing: a lower bound of `first` and an upper bound of `stop` for each query.
    is_exact: whether these bounds equal `first` and `stop`.
    allowed, bias: the caller's arrays with four axes, broadcastable to (B, H, Lq, Lk); -inf in bias excludes a key.
    keep: bool (B, H, Lq, Lk), the dropout keep-mask.
    padding: bool, broadcastable to (B, L) for the L new keys. True at a key that no query may attend to.
    past_padding: the same for the Lp past keys, broadcastable to (B, Lp).
    """

    query_len: Any
    key_len: Any
    first: tf.Tensor | None = None
    stop: tf.Tensor | None = None
    reach: Reach | None = None
    is_exact: bool = True
    allowed: tf.Tensor | None = None
    bias: tf.Tensor | None = None
    keep: tf.Tensor | None = None
    padding: tf.Tensor | None = None
    past_padding: tf.Tensor | None = None


def placed(call: Call[Any], layer: keras.Layer) -> Call[Any]:
    """Return the call with tensors in place of lists, numbers and NumPy's arrays, unless `check_call` refuses them.

    `layer` is not used: TensorFlow itself copies tensors to the device that needs them.
    """
    call = call.map(lambda _, array: as_tensor(array))
    mask = call.mask
    spec = describe(call.queries) if hasattr(call.queries, "dtype") else None
    if spec is not None:
        mask = mask.with_bias_in(spec.dtype, as_tensor)
    return replace(call, mask=mask.map_arrays(lambda _, array: as_tensor(array)))


def build_mask(call: Call[Any], spec: LayerSpec) -> Mask:
    """Return the Mask of a call, after checking the whole call against the layer's spec.

    While tracing, unknown sizes are not checked, nor are the values of `valid_lens`.

    Args:
        call: the result of `placed`.
        spec: the properties of the layer, which the call has to fit.

    Raises:
        SpecError: an argument does not fit the spec; the message names the first one.
    """
    sizes = check_call(call, spec, describe)
    mask = call.mask
    known = replace(
        mask,
        valid_lens=None if mask.valid_lens is None else numbers(mask.valid_lens),
        query_offset=numbers(mask.query_offset),
    )
    check_numbers(known.valid_lens, known.query_offset, sizes.key_len)

    # Tensors if tracing does not know the numbers.
    query_len, new_len = shape_of(call.queries)[-2], shape_of(call.keys)[-2]
    past_len = 0 if call.past_keys is None else shape_of(call.past_keys)[2]
    key_len = past_len + new_len
    if mask.valid_lens is not None:
        mask = replace(mask, valid_lens=within(mask.valid_lens, (0, key_len)))
    mask = replace(mask, query_offset=within(mask.query_offset, OFFSETS))
    lengths = CallSizes(None, query_len, key_len, past_len)
    known_reach, is_exact = _known_reach(mask, known, lengths)
    first, stop = _interval(mask, known_reach if is_exact else None, lengths)
    padding, past_padding = _padding(mask, key_len), None
    if padding is not None and call.past_keys is not None:
        padding = tf.broadcast_to(padding, (shape_of(padding)[0], key_len))
        padding, past_padding = padding[:, past_len:], padding[:, :past_len]
    return Mask(
        query_len,
        key_len,
        first,
        stop,
        known_reach,
        is_exact,
        allowed=_as_rank_4(mask.allowed),
        bias=_as_rank_4(mask.bias),
        keep=call.dropout_keep,
        padding=padding,
        past_padding=past_padding,
    )


def allowed_keys(mask: Mask, block: Part | None = None) -> tf.Tensor | None:
    """Return bools, True = allowed, broadcastable to the scores (B, H, Lq, Lk) or a block's; None if all are True."""
    mask = part_of(mask, block)
    sources = []
    if mask.first is not None and mask.stop is not None and not _is_open(mask, Block(None, None, None, None)):
        position = arange(mask.key_len)
        first, stop = (bound[:, tf.newaxis, :, tf.newaxis] for bound in (mask.first, mask.stop))
        sources.append((position >= first) & (position < stop))
    if mask.allowed is not None:
        sources.append(mask.allowed)
    if mask.bias is not None:
        sources.append(tf.not_equal(mask.bias, -float("inf")))
    return reduce(tf.logical_and, sources) if sources else None


def additive_bias(mask: Mask) -> tf.Tensor | None:
    """Return the bias to add to the scores, with 0 in place of -inf; None without a bias."""
    if mask.bias is None:
        return None
    return tf.where(tf.equal(mask.bias, -float("inf")), tf.zeros((), mask.bias.dtype), mask.bias)


def part_of(mask: Mask, block: Part | None) -> Mask:
    """Return the mask cut to a block (None: uncut). If `first` and `stop` exclude no key in it, they become None."""
    if block is None:
        return mask
    items, _, queries, keys = block

    def part(source: tf.Tensor | None, cut_axis: Callable[..., tf.Tensor] = cut_source) -> tf.Tensor | None:
        """Return the block's part of an array that broadcasts to (B, H, Lq, Lk); None for None."""
        for axis, span in enumerate(block):
            source = None if source is None else cut_axis(source, axis, span)
        return source

    def part_of_bound(bound: tf.Tensor | None) -> tf.Tensor | None:
        """Return the block's part of first or stop, counted from the first key of the block; None for None."""
        if bound is None or is_open:
            return None
        bound = cut_source(cut_source(bound, 0, items), 1, queries)
        if keys is None or (isinstance(keys.start, int) and keys.start == 0):
            return bound
        return bound - tf.cast(keys.start, tf.int64)

    is_open = _is_open(mask, block)
    known = None if is_open else _part_of_reach(mask.reach, block)
    is_exact = mask.is_exact and all(span is None or span.is_known for span in (items, queries, keys))
    return Mask(
        mask.query_len if queries is None else queries.size,
        mask.key_len if keys is None else keys.size,
        part_of_bound(mask.first),
        part_of_bound(mask.stop),
        known,
        is_open or is_exact,
        allowed=part(mask.allowed),
        bias=part(mask.bias),
        keep=part(mask.keep, cut),
    )


def reachable(mask: Mask, queries: Span) -> Span | None:
    """Return a span that contains every key that these queries may attend to; None for all keys.

    The span comes from `mask.reach`, which is known even while tracing.
    """
    if mask.reach is None:
        return None
    keys = mask.reach.keys(slice(None), queries.as_known())
    return None if keys == slice(0, mask.key_len) else Span(keys.start, keys.stop - keys.start)


def _is_open(mask: Mask, block: Part) -> bool:
    """Whether it is known that lengths and positions leave all keys of the block to each of its queries."""
    if mask.reach is None:
        return mask.first is None
    queries = block.queries or Span(0, mask.query_len)
    keys = block.keys or Span(0, mask.key_len)
    if not mask.is_exact or not keys.is_known:
        return False
    items = slice(None) if block.items is None else block.items.as_known()
    return mask.reach.is_open(items, queries.as_known(), keys.as_slice())


def _part_of_reach(known: Reach | None, block: Part) -> Reach | None:
    """Bounds on the reach of a block's queries, counted from its first key; None if only the graph knows that.

    Where only the graph knows which rows are the block's, the bounds are those of all that may be.
    """
    if known is None or not (block.keys is None or block.keys.is_known):
        return None
    first, stop = known
    for axis, span in enumerate((block.items, block.queries)):
        if span is not None:
            rows = (slice(None),) * axis + (span.as_known(),)
            first, stop = (bound if bound.shape[axis] == 1 else bound[rows] for bound in (first, stop))
            if not span.is_known:
                first, stop = first.min(axis, keepdims=True), stop.max(axis, keepdims=True)
    start = 0 if block.keys is None else block.keys.start
    return Reach(first - start, stop - start)


def _padding(mask: AttentionMask, key_len: Any) -> tf.Tensor | None:
    """Bool (1 or B, 1 or Lk): keys that valid_lens alone, or `allowed` alone, excludes for every query and head."""
    padding = None
    if mask.valid_lens is not None:
        lens = mask.valid_lens
        longest = lens if lens.shape.rank == 1 else tf.reduce_max(lens, axis=1)
        padding = arange(key_len) >= longest[:, tf.newaxis]
    if mask.allowed is not None:
        unused = ~tf.reduce_any(_as_rank_4(mask.allowed), axis=(1, 2))
        padding = unused if padding is None else padding | unused
    return padding


def _interval(mask: AttentionMask, known: Reach | None, sizes: CallSizes) -> tuple[tf.Tensor | None, tf.Tensor | None]:
    """`Mask.first` and `Mask.stop`; `known` has their numbers, or is None if tracing does not know all of them."""
    query_len, key_len = sizes.query_len, sizes.key_len
    if mask.valid_lens is None and not mask.has_positions:
        return None, None
    if known is not None:
        return tf.constant(known.first), tf.constant(known.stop)
    first, stop = tf.zeros((1, 1), tf.int64), tf.cast(key_len, tf.int64)[tf.newaxis, tf.newaxis]
    if mask.valid_lens is not None:
        lens = mask.valid_lens
        stop = tf.minimum(stop, lens[:, tf.newaxis] if lens.shape.rank == 1 else lens)
    if mask.has_positions:
        position = tf.reshape(tf.cast(mask.query_offset, tf.int64), (-1, 1)) + arange(query_len)
        left, right = mask.limits
        if right is not None:
            stop = tf.minimum(stop, position + right + 1)
        if left is not None:
            first = tf.maximum(first, position - left)
    return first, stop


def _known_reach(mask: AttentionMask, known: AttentionMask, sizes: CallSizes) -> tuple[Reach | None, bool]:
    """`Mask.reach` and `Mask.is_exact`; `known` holds the numbers of the mask that tracing knows, in NumPy."""
    if mask.valid_lens is None and not mask.has_positions:
        return None, True
    if not isinstance(sizes.query_len, int) or not isinstance(sizes.key_len, int):
        return None, False
    has_offset = known.query_offset is not None or not mask.has_positions
    is_exact = (known.valid_lens is not None or mask.valid_lens is None) and has_offset
    if not has_offset:
        known = replace(known, query_offset=0, causal=False, window=None)
    return reach(known, sizes), is_exact


def _as_rank_4(array: tf.Tensor | None) -> tf.Tensor | None:
    return None if array is None else array[(tf.newaxis,) * (4 - array.shape.rank) + (...,)]
