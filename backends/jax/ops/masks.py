"""The mask of one call in JAX; the rules stand in `mha_core.call.masks`."""

from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array, lax

from backends.jax.ops.framework import as_jax, check_enabled, describe, has_symbols, has_values, numbers
from mha_core.call.arguments import CallSizes
from mha_core.call.blocks import Block
from mha_core.call.call import Call, LayerSpec
from mha_core.call.checks import LONGEST, OFFSETS, check_call, check_numbers
from mha_core.call.masks import AttentionMask

Window = tuple[int | None, int | None]

INTEGERS = ("valid_lens", "query_offset", "positions", "key_positions")
"""The arguments whose numbers are checked."""


class Mask(struct.PyTreeNode):
    """The mask of a call or of a part (`Block`) of its scores, in JAX. A field is None if its argument is not given.

    key_len: Lk, the number of past and new keys. It is static; all other fields are leaves of a pytree.
    first, stop: integers >= 0, broadcastable to (B, 1, Lq, 1): valid_lens, causal and window allow key j iff
        first <= j < stop. `first` is None if it is 0 everywhere.
    allowed: bool, the caller's array with four axes; True = may attend.
    bias: the caller's array with four axes; -inf excludes a key.
    keep: bool (B, H, Lq, Lk), the dropout keep-mask.
    padding: bool, broadcastable to (B, L) for the L new keys. True at a key that no query may attend to.
    past_padding: the same for the Lp past keys, broadcastable to (B, Lp).
    """

    key_len: int = struct.field(pytree_node=False)
    first: Array | None = None
    stop: Array | None = None
    allowed: Array | None = None
    bias: Array | None = None
    keep: Array | None = None
    padding: Array | None = None
    past_padding: Array | None = None


def placed(call: Call[Any], layer: nn.Module) -> Call[Any]:
    """Return the call with arrays of JAX in place of lists, numbers and NumPy's arrays.

    Lengths and positions stay in NumPy until `build_mask` and `rotary_tables` have checked them, because JAX might
    narrow them. Arrays that `check_call` refuses, or that JAX would narrow, are not converted either.

    Args:
        call: the call, as the layer was given it.
        layer: unused, since JAX itself moves new arrays to the device of the layer's parameters.
    """
    call = call.map(_as_placed)
    mask = call.mask
    if isinstance(getattr(call.queries, "dtype", None), np.dtype):
        mask = mask.with_bias_in(call.queries.dtype.name, lambda array, dtype: as_jax("bias", array, dtype))
    return replace(call, mask=mask.map_arrays(_as_placed))


def build_mask(call: Call[Any], spec: LayerSpec) -> Mask:
    """Return the Mask of a call, after checking the whole call against the layer's spec.

    Args:
        call: the result of `placed`.
        spec: the properties of the layer, which the call has to fit.

    Raises:
        SpecError: an argument does not fit the spec; the message names the first one.
    """
    sizes = check_call(call, spec, describe)
    mask, lens, offset = call.mask, call.mask.valid_lens, call.mask.query_offset
    known_lens = np.asarray(lens) if lens is not None and has_values(lens) else None
    known_offset = offset if isinstance(offset, int) else numbers(offset)
    check_numbers(known_lens, known_offset, sizes.key_len)
    for name in ("queries", "keys", "values"):
        array = getattr(call, name)
        if isinstance(array, np.ndarray):
            check_enabled(name, array.dtype)

    mask = replace(
        mask,
        valid_lens=None if lens is None else within(lens, (0, sizes.key_len), known_lens is not None),
        query_offset=within(offset, OFFSETS, known_offset is not None),
    )
    first, stop = _interval(mask, sizes)
    padding, past_padding = _padding(mask, sizes), None
    if padding is not None and sizes.past_len:
        padding, past_padding = _split_at(padding, sizes)
    return Mask(
        sizes.key_len,
        first,
        stop,
        allowed=_as_rank_4(mask.allowed),
        bias=_as_rank_4(mask.bias),
        keep=call.dropout_keep,
        padding=padding,
        past_padding=past_padding,
    )


def allowed_keys(mask: Mask, block: Block | None = None) -> Array | None:
    """Return bools, True = allowed, broadcastable to the scores (B, H, Lq, Lk) or a block's; None if all are True."""
    mask = part_of(mask, block)
    allowed = mask.allowed
    if mask.bias is not None:
        allowed = _both(allowed, ~jnp.isneginf(mask.bias))
    if mask.stop is not None:
        allowed = _both(allowed, jnp.arange(mask.key_len) < mask.stop)
    if mask.first is not None:
        allowed = _both(allowed, jnp.arange(mask.key_len) >= mask.first)
    return allowed


def has_key(mask: Mask, allowed: Array) -> Array:
    """Return bools, broadcastable to (B, H, Lq, 1): True for a query with a key in `allowed` (see `allowed_keys`)."""
    if mask.allowed is not None or mask.bias is not None or mask.stop is None:
        return allowed.any(axis=-1, keepdims=True)
    return mask.stop > (0 if mask.first is None else mask.first)


def additive_bias(mask: Mask) -> Array | None:
    """Return the bias to add to the scores, with 0 in place of -inf; None without a bias."""
    return None if mask.bias is None else jnp.where(jnp.isneginf(mask.bias), 0.0, mask.bias)


def part_of(mask: Mask, block: Block | None) -> Mask:
    """Return the mask cut to a block, without its padding fields. Return the mask unchanged if `block` is None."""
    if block is None:
        return mask
    first, stop, allowed, bias, keep = (
        None if source is None else cut(source, block._replace(keys=slice(None)))
        for source in (mask.first, mask.stop, mask.allowed, mask.bias, mask.keep)
    )
    rows = Mask(mask.key_len, first, stop, allowed, bias, keep)
    return with_keys(rows, block.keys.start, block.keys.stop - block.keys.start)


def with_keys(mask: Mask, start: int | Array, key_len: int) -> Mask:
    """Return the mask of the `key_len` keys from `start` on. `start` may be traced, unlike a bound of a slice.

    The mask's arrays may have any number of axes before the axis of the keys.
    """
    if key_len == mask.key_len:
        return mask
    return Mask(
        key_len,
        None if mask.first is None else mask.first - start,
        None if mask.stop is None else mask.stop - start,
        allowed=None if mask.allowed is None else cut_keys(mask.allowed, start, key_len),
        bias=None if mask.bias is None else cut_keys(mask.bias, start, key_len),
        keep=None if mask.keep is None else cut_keys(mask.keep, start, key_len),
    )


def cut(array: Array, block: Block) -> Array:
    """Return a block's part of an array that broadcasts to (B, H, Lq, Lk)."""
    return array[tuple(slice(None) if size == 1 else part for size, part in zip(array.shape, block, strict=True))]


def cut_keys(array: Array, start: int | Array, key_len: int) -> Array:
    """Return an array (..., Lk) cut to the `key_len` keys from `start` on; an array (..., 1) is returned unchanged."""
    return array if array.shape[-1] in (1, key_len) else lax.dynamic_slice_in_dim(array, start, key_len, axis=-1)


def _as_placed(name: str, array: Any) -> Any:
    return array if isinstance(array, np.ndarray) and name in INTEGERS else as_jax(name, array)


def _interval(mask: AttentionMask, sizes: CallSizes) -> tuple[Array | None, Array | None]:
    """`Mask.first` and `Mask.stop`.

    Where JAX has no int64, an offset and a reach may come to more than int32 holds: their sums stop at its ends,
    beyond which no key stands.
    """
    if mask.valid_lens is None and not mask.has_positions:
        return None, None
    first, stop = None, jnp.full((1, 1, 1, 1), sizes.key_len)
    if mask.valid_lens is not None:
        lens = mask.valid_lens
        stop = jnp.minimum((lens[:, None] if lens.ndim == 1 else lens)[:, None, :, None], stop)
    if mask.has_positions:
        left, right = mask.limits
        offset = jnp.asarray(mask.query_offset, dtype=int).reshape(-1, 1, 1, 1)
        query = jnp.arange(sizes.query_len)[:, None]
        if right is not None:
            reached = _plus(_plus(_plus(offset, right), 1), query)
            stop = jnp.maximum(jnp.minimum(stop, reached), 0)  # so that `with_keys` may subtract from it
        if left is not None:
            first = jnp.maximum(_plus(_minus(offset, left), query), 0)
    return first, stop


def within(integers: Any, limits: tuple[int, int], is_checked: bool) -> Any:
    """Return the integers in JAX's default integer dtype. They are clipped to the limits unless `is_checked`."""
    if isinstance(integers, int):
        return integers
    integers = jnp.asarray(integers)
    if not is_checked:
        info = jnp.iinfo(integers.dtype)
        symbol = has_symbols(limits[1])
        highest = min(LONGEST if symbol else limits[1], int(info.max))
        integers = jnp.clip(integers, max(limits[0], int(info.min)), highest)
        if symbol:  # which may be more than a narrow integer holds
            return jnp.minimum(integers.astype(int), limits[1])
    return integers.astype(int)


def _plus(position: Array, more: Any) -> Array:
    """The sum, at most the largest integer of 32 bits."""
    return jnp.minimum(position, LONGEST - more) + more


def _minus(position: Array, less: int) -> Array:
    """The difference, at least the smallest integer of 32 bits."""
    return jnp.maximum(position, less - LONGEST - 1) - less


def _padding(mask: AttentionMask, sizes: CallSizes) -> Array | None:
    """Bool (1 or B, 1 or Lk): keys that valid_lens alone, or `allowed` alone, excludes for every query and head."""
    padding = None
    if mask.valid_lens is not None:
        lens = mask.valid_lens
        longest = lens if lens.ndim == 1 else lens.max(axis=1, initial=0)
        padding = jnp.arange(sizes.key_len) >= longest[:, None]
    if mask.allowed is not None:
        unused = ~_as_rank_4(mask.allowed).any(axis=(1, 2))
        padding = unused if padding is None else padding | unused
    return padding


def _split_at(padding: Array, sizes: CallSizes) -> tuple[Array, Array]:
    """(1 or B, 1 or Lk) as that of the new keys and that of the past."""
    if padding.shape[1] == 1:
        return padding, padding
    return padding[:, sizes.past_len :], padding[:, : sizes.past_len]


def _both(one: Array | None, other: Array) -> Array:
    return other if one is None else one & other


def _as_rank_4(array: Any) -> Any:
    return None if array is None else array.reshape((1,) * (4 - array.ndim) + array.shape)
