"""The mask of one call in MXNet, built on the device of the queries; the rules stand in `mha_core.call.masks`."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.mxnet.ops.framework import as_mxnet, check_computes, describe, mx, numbers, select, to_array
from mha_core.call.blocks import Reach, reach
from mha_core.call.call import Call, LayerSpec
from mha_core.call.checks import check_call, check_numbers
from mha_core.call.masks import AttentionMask
from mha_core.call.sizes import CallSizes
from mha_core.heads import HeadShapes

Window = tuple[int | None, int | None]
Widths = tuple[int | None, int | None, int | None]


class Mask(NamedTuple):
    """What the sources of a mask come to, in memory that grows with Lq + Lk; None where there is nothing of a kind.

    reach: which keys valid_lens, causal and window leave to a query; numbers of NumPy.
    allowed: bool, as it was given but of rank 4; True = may attend.
    bias: as it was given but of rank 4; -inf excludes.
    keep: bool (B, H, Lq, Lk), the dropout keep-mask.
    padding, past_padding: bool, broadcastable to (B, Lk - Lp) and (B, Lp): new keys, and keys of the
        past, that nobody can attend to.
    """

    reach: Reach | None = None
    allowed: mx.np.ndarray | None = None
    bias: mx.np.ndarray | None = None
    keep: mx.np.ndarray | None = None
    padding: mx.np.ndarray | None = None
    past_padding: mx.np.ndarray | None = None


class Block(NamedTuple):
    """A part of the weights (B, H, Lq, Lk), by its items, heads, queries and keys."""

    items: slice
    heads: slice
    queries: slice
    keys: slice

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the block's weights."""
        return tuple(part.stop - part.start for part in self)

    def of(self, source: mx.np.ndarray) -> mx.np.ndarray:
        """This part of an array that broadcasts to (B, H, Lq, Lk)."""
        return source[self.place(source)]

    def place(self, source: mx.np.ndarray) -> tuple[slice, ...]:
        """Where in the array that part is."""
        return tuple(slice(None) if n == 1 else part for n, part in zip(source.shape, self, strict=True))


@mx.util.use_np
def allowed_keys(mask: Mask, block: Block, ctx: mx.Context) -> mx.np.ndarray | None:
    """Bool, broadcastable to the block's weights: all sources combined. None where they leave every key."""
    sources = []
    if mask.reach is not None and not mask.reach.is_open(block.items, block.queries, block.keys):
        first, stop = (to_array(bound, "int64", ctx)[:, None, :, None] for bound in part_of(mask.reach, block))
        position = mx.np.arange(block.keys.start, block.keys.stop, dtype="int64", ctx=ctx)
        sources += [position >= first, position < stop]
    if mask.allowed is not None:
        sources.append(block.of(mask.allowed))
    if mask.bias is not None:
        sources.append(~mx.np.isneginf(block.of(mask.bias)))
    # AND: `&` on booleans fails where it must broadcast
    return reduce(mx.np.multiply, sources) if sources else None


def part_of(reach: Reach, block: Block) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`first` and `stop` of the block's items and queries, (1 or items, 1 or queries)."""
    first, stop = (bound if len(bound) == 1 else bound[block.items] for bound in reach)
    first, stop = (bound if bound.shape[1] == 1 else bound[:, block.queries] for bound in (first, stop))
    return first, stop


@mx.util.use_np
def additive_bias(bias: mx.np.ndarray) -> mx.np.ndarray:
    """The bias to add to the scores: 0 where it only excludes."""
    return select(~mx.np.isneginf(bias), bias, 0.0)


def sources_of(queries: Any, ctx: mx.Context, mask: AttentionMask) -> AttentionMask:
    """The mask with arrays of MXNet in place of lists, numbers and NumPy's arrays; NumPy's integers stay."""
    spec = describe(queries)
    if spec is not None:
        mask = mask.with_bias_in(spec.dtype, lambda array, dtype: as_mxnet(array, ctx, dtype))
    return mask.map_arrays(
        lambda name, array: (
            array if isinstance(array, np.ndarray) and name in ("valid_lens", "query_offset") else as_mxnet(array, ctx)
        )
    )


@mx.util.use_np
def build_mask(
    queries: mx.np.ndarray,
    keys: mx.np.ndarray,
    values: mx.np.ndarray,
    mask: AttentionMask,
    dropout_keep: Any = None,
    past_keys: mx.np.ndarray | None = None,
    past_values: mx.np.ndarray | None = None,
    *,
    num_heads: int,
    widths: Widths = (None, None, None),
    head_shapes: HeadShapes | None = None,
    split: bool = False,
    layer_dtype: Any = None,
) -> Mask:
    """Check the whole call (SpecError), then put the sources of its mask in the shapes that they have in `Mask`.

    All arrays have been through `as_mxnet`, but for those of the mask's integers, which may be NumPy's.
    `head_shapes` and `split` are those of `mha_core.call.checks.check_call`.
    """
    call = Call(queries, keys, values, mask, dropout_keep, past_keys, past_values)
    dtype = None if layer_dtype is None else np.dtype(layer_dtype).name
    sizes = check_call(call, LayerSpec(num_heads, widths, head_shapes, split, dtype), describe)
    known = replace(mask, valid_lens=numbers(mask.valid_lens), query_offset=numbers(mask.query_offset))
    check_numbers(known.valid_lens, known.query_offset, sizes.key_len)
    check_computes("queries", queries.dtype)  # which is that of all
    ctx = queries.ctx

    within = reach(known, sizes) if known.has_positions or known.valid_lens is not None else None
    allowed, bias = (None if source is None else _as_rank_4(source) for source in (mask.allowed, mask.bias))
    padding, past_padding = _padding(known.valid_lens, allowed, sizes, ctx), None
    if padding is not None and sizes.past_len:
        padding = mx.np.broadcast_to(padding, (padding.shape[0], sizes.key_len))
        padding, past_padding = padding[:, sizes.past_len :], padding[:, : sizes.past_len]
    return Mask(within, allowed, bias, dropout_keep, padding, past_padding)


def _padding(
    valid_lens: NDArray | None, allowed: mx.np.ndarray | None, sizes: CallSizes, ctx: mx.Context
) -> mx.np.ndarray | None:
    """(1 or B, 1 or Lk): what `valid_lens` alone, or `allowed` alone, excludes for every query and head."""
    used = []
    if valid_lens is not None:
        longest = valid_lens if valid_lens.ndim == 1 else valid_lens.max(axis=1, initial=0)
        used.append(to_array(np.arange(sizes.key_len) < longest[:, None], "bool", ctx))
    if allowed is not None:
        used.append(mx.np.any(allowed, axis=(1, 2)))
    return ~reduce(mx.np.multiply, used) if used else None


def _as_rank_4(array: mx.np.ndarray) -> mx.np.ndarray:
    return array.reshape((1,) * (4 - array.ndim) + array.shape)
