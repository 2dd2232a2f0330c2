"""The mask of one call in JAX; the rules stand in `mha_core.masks`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from backends.jax.framework import check_enabled, has_values, to_array
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

    allowed: Array
    padding: Array | None
    past_padding: Array | None
    bias: Array | None
    keep: Array | None


def build_mask(
    queries: Array,
    keys: Array,
    values: Array,
    mask: AttentionMask,
    dropout_keep: Any,
    past_keys: Array | None = None,
    past_values: Array | None = None,
    *,
    num_heads: int,
    widths: Widths = (None, None, None),
    head_shapes: HeadShapes | None = None,
    split: bool = False,
    dtype: str | None = None,
) -> Mask:
    """Check the whole call (SpecError), then combine the sources of its mask with AND.

    `head_shapes` and `split` are those of `mha_core.checks.check_call`; `dtype` is that of the layer's
    parameters, None if it has none or casts to a dtype of its own.
    """
    given = {"queries": queries, "keys": keys, "values": values, "past_keys": past_keys, "past_values": past_values}
    for name, array in given.items():
        if isinstance(array, np.ndarray):
            check_enabled(name, array.dtype)
    given_lens = mask.valid_lens
    mask = mask.map_arrays(to_array)
    keep = None if dropout_keep is None else to_array("dropout_keep", dropout_keep)
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
        layer_dtype=dtype,
    )
    if given_lens is not None and has_values(given_lens):
        check_valid_lens(np.asarray(given_lens), sizes.key_len)

    allowed = jnp.ones((1, 1, 1, sizes.key_len), dtype=bool)
    padding = None
    for source in (_within_valid_lens(mask, sizes), mask.allowed):
        if source is not None:
            source = _as_rank_4(source)
            allowed = allowed & source
            unused = ~source.any(axis=(1, 2))
            padding = unused if padding is None else padding | unused
    bias = None
    if mask.bias is not None:
        bias = _as_rank_4(mask.bias)
        excluded = jnp.isneginf(bias)
        allowed = allowed & ~excluded
        bias = jnp.where(excluded, 0.0, bias)
    if mask.has_positions:
        allowed = allowed & _within_reach(mask, sizes)
    past_padding = None
    if padding is not None and sizes.past_len:
        padding = jnp.broadcast_to(padding, (padding.shape[0], sizes.key_len))
        padding, past_padding = padding[:, sizes.past_len :], padding[:, : sizes.past_len]
    return Mask(allowed, padding, past_padding, bias, keep)


def _within_valid_lens(mask: AttentionMask, sizes: CallSizes) -> Array | None:
    """(B, 1, 1 or Lq, Lk)."""
    if mask.valid_lens is None:
        return None
    lens = mask.valid_lens[:, None] if mask.valid_lens.ndim == 1 else mask.valid_lens
    return jnp.arange(sizes.key_len) < lens[:, None, :, None]


def _within_reach(mask: AttentionMask, sizes: CallSizes) -> Array:
    """(1 or B, 1, Lq, Lk): `causal` and `window`."""
    offset = mask.query_offset
    offset = to_array("query_offset", np.asarray(offset) if isinstance(offset, int) else offset)
    position = offset.astype(int).reshape(-1, 1, 1, 1) + jnp.arange(sizes.query_len)[:, None]
    ahead = jnp.arange(sizes.key_len) - position  # how far the key stands ahead of the query
    left, right = mask.window or (None, None)
    reach = ahead <= 0 if mask.causal else jnp.ones_like(ahead, dtype=bool)
    if left is not None:
        reach = reach & (ahead >= -left)
    if right is not None:
        reach = reach & (ahead <= right)
    return reach


def _as_rank_4(array: Array) -> Array:
    return array.reshape((1,) * (4 - array.ndim) + array.shape)
