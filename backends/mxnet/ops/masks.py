"""The mask of one call in MXNet, built on the device of the queries; the rules stand in `mha_core.call.masks`."""

from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.mxnet.ops.framework import (
    as_mxnet,
    check_computes,
    context_of_call,
    describe,
    first_parameter,
    mx,
    numbers,
    select,
    to_array,
)
from mha_core.call.arguments import CallSizes
from mha_core.call.blocks import Block, Reach, reach
from mha_core.call.call import Call, LayerSpec
from mha_core.call.checks import check_call, check_numbers

Window = tuple[int | None, int | None]

INTEGERS = ("valid_lens", "query_offset")
"""The sources of a mask from which `Mask.reach` is made in NumPy."""


class Mask(NamedTuple):
    """The mask of a call or of a part (`Block`) of its scores. A field is None if its argument is not given.

    Its memory grows with Lq + Lk, apart from the arrays that the caller gave.

    shape: (B, H, Lq, Lk), the shape of all scores, or of those in the block.
    ctx: the context of the mask's arrays.
    reach: NumPy arrays (first, stop): valid_lens, causal, window allow key j iff first <= j < stop. None: all keys.
    allowed: bool, the caller's array with four axes; True = may attend.
    bias: the caller's array with four axes; -inf excludes a key.
    keep: bool (B, H, Lq, Lk), the dropout keep-mask.
    padding: bool, broadcastable to (B, L) for the L new keys. True at a key that no query may attend to.
    past_padding: the same for the Lp past keys, broadcastable to (B, Lp). Both are None in the mask of a block.
    """

    shape: tuple[int, ...]
    ctx: mx.Context
    reach: Reach | None = None
    allowed: mx.np.ndarray | None = None
    bias: mx.np.ndarray | None = None
    keep: mx.np.ndarray | None = None
    padding: mx.np.ndarray | None = None
    past_padding: mx.np.ndarray | None = None


@mx.util.use_np
def placed(call: Call[Any], layer: mx.gluon.Block) -> Call[Any]:
    """Return the call with MXNet arrays, in one context, in place of lists, numbers and NumPy's arrays.

    The context is that of the call's first MXNet array, else of the layer's parameters. Integers of the mask
    stay in NumPy, where `build_mask` needs them. Arguments that `check_call` refuses are not converted.
    """
    ctx = context_of_call(layer, call.queries, call.keys, call.values)
    call = call.map(lambda _, array: as_mxnet(array, ctx))
    mask, spec = call.mask, describe(call.queries)
    if spec is not None:
        mask = mask.with_bias_in(spec.dtype, lambda array, dtype: as_mxnet(array, ctx, dtype))
    mask = mask.map_arrays(
        lambda name, array: array if isinstance(array, np.ndarray) and name in INTEGERS else as_mxnet(array, ctx)
    )
    return call if mask is call.mask else replace(call, mask=mask)


@mx.util.use_np
def build_mask(call: Call[Any], spec: LayerSpec) -> Mask:
    """Return the Mask of a call, after checking the whole call against the layer's spec.

    Args:
        call: the result of `placed`.
        spec: the properties of the layer, which the call has to fit.

    Raises:
        SpecError: an argument does not fit the spec; the message names the first one.
        BackendError: a dtype that MXNet does not compute in.
    """
    sizes = check_call(call, spec, describe)
    mask, ctx = call.mask, call.queries.ctx
    known = mask.map_arrays(lambda name, array: numbers(array) if name in INTEGERS else array)
    check_numbers(known.valid_lens, known.query_offset, sizes.key_len)
    check_computes("queries", call.queries.dtype)  # which is that of all

    has_interval = known.has_positions or known.valid_lens is not None
    within = reach(known, sizes) if has_interval else None
    if within is not None and within.is_open(*(slice(0, size) for size in sizes[:3])):
        within = None
    allowed, bias = (None if source is None else _as_rank_4(source) for source in (mask.allowed, mask.bias))
    padding, past_padding = _padding(known.valid_lens, allowed, sizes, ctx), None
    if padding is not None and sizes.past_len:
        padding = mx.np.broadcast_to(padding, (padding.shape[0], sizes.key_len))
        padding, past_padding = padding[:, sizes.past_len :], padding[:, : sizes.past_len]
    shape = (sizes.batch, spec.num_heads, sizes.query_len, sizes.key_len)
    return Mask(shape, ctx, within, allowed, bias, call.dropout_keep, padding, past_padding)


@mx.util.use_np
def allowed_keys(mask: Mask, block: Block | None = None) -> mx.np.ndarray | None:
    """Return bools, True = allowed, broadcastable to the scores (B, H, Lq, Lk) or a block's; None if all are True."""
    mask = part_of(mask, block)
    sources = []
    if mask.reach is not None:
        first, stop = (to_array(bound[:, None, :, None], "int64", mask.ctx) for bound in mask.reach)
        position = mx.np.arange(mask.shape[3], dtype="int64", ctx=mask.ctx)
        sources += [position >= first, position < stop]
    if mask.allowed is not None:
        sources.append(mask.allowed)
    if mask.bias is not None:
        sources.append(~mx.np.isneginf(mask.bias))
    # AND: `&` on booleans fails where it must broadcast
    return reduce(mx.np.multiply, sources) if sources else None


@mx.util.use_np
def additive_bias(mask: Mask) -> mx.np.ndarray | None:
    """Return the bias to add to the scores, with 0 in place of -inf; None without a bias."""
    return None if mask.bias is None else select(~mx.np.isneginf(mask.bias), mask.bias, 0.0)


@mx.util.use_np
def part_of(mask: Mask, block: Block | None) -> Mask:
    """Return the mask cut to a block (None: uncut). If `reach` excludes no key in it, `reach` becomes None."""
    if block is None:
        return mask
    within = mask.reach
    if within is not None and within.is_open(block.items, block.queries, block.keys):
        within = None
    if within is not None:
        bounds = (bound[place((block.items, block.queries), bound.shape)] for bound in within)
        within = Reach(*(bound - block.keys.start for bound in bounds))
    return Mask(
        tuple(part.stop - part.start for part in block),
        mask.ctx,
        within,
        allowed=None if mask.allowed is None else cut(mask.allowed, block),
        bias=None if mask.bias is None else cut(mask.bias, block),
        keep=None if mask.keep is None else cut(mask.keep, block),
    )


def cut(array: mx.np.ndarray, block: Block) -> mx.np.ndarray:
    """Return a block's part of an array that broadcasts to (B, H, Lq, Lk)."""
    return array[place(block, array.shape)]


def place(block: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the slices that cut a block from an array of this shape. Axes of size 1 broadcast and are not cut."""
    return tuple(slice(None) if size == 1 else part for size, part in zip(shape, block, strict=True))


def expected_dtype(layer: mx.gluon.Block) -> str | None:
    """Return the dtype that a layer's inputs must have: that of its parameters. None if it has no parameters."""
    parameter = first_parameter(layer)
    return None if parameter is None else np.dtype(parameter.dtype).name


def _padding(
    valid_lens: NDArray | None, allowed: mx.np.ndarray | None, sizes: CallSizes, ctx: mx.Context
) -> mx.np.ndarray | None:
    """Bool (1 or B, 1 or Lk): keys that valid_lens alone, or `allowed` alone, excludes for every query and head."""
    used = []
    if valid_lens is not None:
        longest = valid_lens if valid_lens.ndim == 1 else valid_lens.max(axis=1, initial=0)
        used.append(to_array(np.arange(sizes.key_len) < longest[:, None], "bool", ctx))
    if allowed is not None:
        used.append(mx.np.any(allowed, axis=(1, 2)))
    return ~reduce(mx.np.multiply, used) if used else None


def _as_rank_4(array: mx.np.ndarray) -> mx.np.ndarray:
    return array.reshape((1,) * (4 - array.ndim) + array.shape)
