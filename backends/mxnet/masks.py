"""The mask of one call in MXNet, built on the device of the queries; the rules stand in `mha_core.masks`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from backends.mxnet.framework import as_source, describe, mx, select, to_numpy
from mha_core.checks import CallSizes, check_call, check_valid_lens
from mha_core.heads import HeadShapes
from mha_core.masks import AttentionMask

Window = tuple[int | None, int | None]
Widths = tuple[int | None, int | None, int | None]


class Mask(NamedTuple):
    """What the sources of a mask come to.

    allowed: bool, broadcastable to (B, H, Lq, Lk); True = may attend.
    padding, past_padding: bool, broadcastable to (B, Lk - Lp) and (B, Lp): new keys, and keys of the
        past, that nobody can attend to; None if there are none.
    bias: broadcastable to (B, H, Lq, Lk), 0 where it only excluded; None without one.
    keep: bool (B, H, Lq, Lk), the dropout keep-mask; None without one.
    """

    allowed: mx.np.ndarray
    padding: mx.np.ndarray | None
    past_padding: mx.np.ndarray | None
    bias: mx.np.ndarray | None
    keep: mx.np.ndarray | None


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
    """Check the whole call (SpecError), then combine the sources of its mask with AND.

    `head_shapes` and `split` are those of `mha_core.checks.check_call`.
    """
    ctx = queries.ctx
    mask = mask.map_arrays(lambda _, array: as_source(array, ctx))
    keep = None if dropout_keep is None else as_source(dropout_keep, ctx)
    sizes = check_call(
        queries=queries,
        keys=keys,
        values=values,
        mask=mask,
        dropout_keep=keep,
        past_keys=past_keys,
        past_values=past_values,
        num_heads=num_heads,
        widths=widths,
        head_shapes=head_shapes,
        split=split,
        layer_dtype=None if layer_dtype is None else np.dtype(layer_dtype).name,
        describe=describe,
    )
    if mask.valid_lens is not None:
        check_valid_lens(to_numpy(mask.valid_lens), sizes.key_len)

    allowed = mx.np.ones((1, 1, 1, sizes.key_len), dtype="bool", ctx=ctx)
    used = None
    for source in (_within_valid_lens(mask, sizes, ctx), mask.allowed):
        if source is not None:
            source = _as_rank_4(source)
            allowed = allowed * source  # AND: `&` on booleans fails where it must broadcast
            used_here = mx.np.any(source, axis=(1, 2))
            used = used_here if used is None else used * used_here
    bias = None
    if mask.bias is not None:
        bias = _as_rank_4(mask.bias)
        included = ~mx.np.isneginf(bias)
        allowed = allowed * included
        bias = select(included, bias, 0.0)
    if mask.has_positions:
        allowed = allowed * _within_reach(mask, sizes, ctx)
    padding, past_padding = None if used is None else ~used, None
    if padding is not None and sizes.past_len:
        padding = mx.np.broadcast_to(padding, (padding.shape[0], sizes.key_len))
        padding, past_padding = padding[:, sizes.past_len :], padding[:, : sizes.past_len]
    return Mask(allowed, padding, past_padding, bias, keep)


def _within_valid_lens(mask: AttentionMask, sizes: CallSizes, ctx: mx.Context) -> mx.np.ndarray | None:
    """(B, 1, 1 or Lq, Lk)."""
    if mask.valid_lens is None:
        return None
    lens = mask.valid_lens[:, None] if mask.valid_lens.ndim == 1 else mask.valid_lens
    return _arange(sizes.key_len, ctx) < lens[:, None, :, None]


def _within_reach(mask: AttentionMask, sizes: CallSizes, ctx: mx.Context) -> mx.np.ndarray:
    """(1 or B, 1, Lq, Lk): `causal` and `window`."""
    position = as_source(mask.query_offset, ctx).reshape(-1, 1, 1, 1) + _arange(sizes.query_len, ctx)[:, None]
    ahead = _arange(sizes.key_len, ctx) - position  # how far the key stands ahead of the query
    left, right = mask.window or (None, None)
    reach = ahead <= 0 if mask.causal else mx.np.ones(ahead.shape, dtype="bool", ctx=ctx)
    if left is not None:
        reach = reach * (ahead >= _integer(-left, ctx))
    if right is not None:
        reach = reach * (ahead <= _integer(right, ctx))
    return reach


def _arange(length: int | None, ctx: mx.Context) -> mx.np.ndarray:
    return mx.np.arange(length, dtype="int64", ctx=ctx)


def _integer(value: int, ctx: mx.Context) -> mx.np.ndarray:
    """An int64 array, because MXNet turns a Python int beside an array into a double."""
    return as_source(value, ctx)


def _as_rank_4(array: mx.np.ndarray) -> mx.np.ndarray:
    return array.reshape((1,) * (4 - array.ndim) + array.shape)
