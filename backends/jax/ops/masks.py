"""The mask of one call in JAX; the rules stand in `mha_core.call.masks`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from backends.jax.ops.framework import as_jax, check_enabled, describe, has_values, numbers
from mha_core.call.call import Call, LayerSpec
from mha_core.call.checks import LONGEST, OFFSETS, check_call, check_numbers
from mha_core.call.masks import AttentionMask
from mha_core.call.sizes import CallSizes
from mha_core.heads import HeadShapes

Window = tuple[int | None, int | None]
Widths = tuple[int | None, int | None, int | None]


class Mask(NamedTuple):
    """What the sources of a mask come to; None where there is nothing of a kind.

    first, stop: integers, broadcastable to (B, 1, Lq, 1): the keys first <= j < stop are what valid_lens, causal
        and window leave to a query. `first` is None where it is 0 for all.
    allowed: bool, as it was given but of rank 4; True = may attend.
    bias: as it was given but of rank 4; -inf excludes.
    keep: bool (B, H, Lq, Lk), the dropout keep-mask.
    padding, past_padding: bool, broadcastable to (B, Lk - Lp) and (B, Lp): new keys, and keys of the
        past, that nobody can attend to.
    """

    first: Array | None = None
    stop: Array | None = None
    allowed: Array | None = None
    bias: Array | None = None
    keep: Array | None = None
    padding: Array | None = None
    past_padding: Array | None = None

    @property
    def excludes(self) -> bool:
        """Whether it has any source; without one, every query may attend to every key."""
        return any(source is not None for source in self[:4])


def allowed_keys(mask: Mask, keys: Array) -> Array:
    """Bool, broadcastable to (..., Lq, Lk): all sources combined, of the keys at these positions (Lk,).

    The mask's arrays are those of all queries and keys, or of one block of them.
    """
    allowed = jnp.ones(keys.shape, dtype=bool) if mask.allowed is None else mask.allowed
    if mask.bias is not None:
        allowed = allowed & ~jnp.isneginf(mask.bias)
    if mask.stop is not None:
        allowed = allowed & (keys < mask.stop)
    if mask.first is not None:
        allowed = allowed & (keys >= mask.first)
    return allowed


def has_key(mask: Mask, allowed: Array) -> Array:
    """Bool, broadcastable to (..., Lq, 1): whether a query has any key, where `allowed_keys` gave this."""
    if mask.allowed is not None or mask.bias is not None or mask.stop is None:
        return allowed.any(axis=-1, keepdims=True)
    return mask.stop > (0 if mask.first is None else mask.first)


def additive_bias(mask: Mask) -> Array | None:
    """The bias to add to the scores: 0 where it only excludes."""
    return None if mask.bias is None else jnp.where(jnp.isneginf(mask.bias), 0.0, mask.bias)


def sources_of(queries: Any, mask: AttentionMask) -> AttentionMask:
    """The mask with arrays of JAX in place of lists, numbers and NumPy's arrays.

    Integers of NumPy stay what they are until `build_mask` has looked at them: JAX might not hold them.
    """
    if isinstance(getattr(queries, "dtype", None), np.dtype):
        mask = mask.with_bias_in(queries.dtype.name, lambda array, dtype: as_jax("bias", array, dtype))
    return mask.map_arrays(
        lambda name, array: (
            array if isinstance(array, np.ndarray) and name in ("valid_lens", "query_offset") else as_jax(name, array)
        )
    )


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
    """Check the whole call (SpecError), then put the sources of its mask in the shapes that they have in `Mask`.

    All arrays have been through `as_jax`, but for those of the mask's integers, which may be NumPy's.
    `head_shapes` and `split` are those of `mha_core.call.checks.check_call`; `dtype` is that of the layer's
    parameters, None if it has none or casts to a dtype of its own.
    """
    call = Call(queries, keys, values, mask, dropout_keep, past_keys, past_values)
    sizes = check_call(call, LayerSpec(num_heads, widths, head_shapes, split, dtype), describe)
    lens, offset = mask.valid_lens, mask.query_offset
    known_lens = np.asarray(lens) if lens is not None and has_values(lens) else None
    known_offset = offset if isinstance(offset, int) else numbers(offset)
    check_numbers(known_lens, known_offset, sizes.key_len)
    for name, array in (("queries", queries), ("keys", keys), ("values", values)):
        if isinstance(array, np.ndarray):
            check_enabled(name, array.dtype)

    mask = replace(
        mask,
        valid_lens=None if lens is None else _within(lens, (0, sizes.key_len), known_lens is not None),
        query_offset=_within(offset, OFFSETS, known_offset is not None),
    )
    first, stop = _reach(mask, sizes)
    padding = _padding(mask, sizes)
    past_padding = None
    if padding is not None and sizes.past_len:
        padding = jnp.broadcast_to(padding, (padding.shape[0], sizes.key_len))
        padding, past_padding = padding[:, sizes.past_len :], padding[:, : sizes.past_len]
    return Mask(first, stop, _as_rank_4(mask.allowed), _as_rank_4(mask.bias), dropout_keep, padding, past_padding)


def _reach(mask: AttentionMask, sizes: CallSizes) -> tuple[Array | None, Array | None]:
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
            stop = jnp.minimum(stop, _plus(_plus(_plus(offset, right), 1), query))
        if left is not None:
            first = jnp.maximum(_plus(_minus(offset, left), query), 0)
    return first, stop


def _within(integers: Any, limits: tuple[int, int], is_checked: bool) -> Any:
    """The same in JAX's usual integers; of numbers that could not be looked at, the nearest within the limits."""
    if isinstance(integers, int):
        return integers
    integers = jnp.asarray(integers)
    if not is_checked:
        info = jnp.iinfo(integers.dtype)
        integers = jnp.clip(integers, max(limits[0], int(info.min)), min(limits[1], int(info.max)))
    return integers.astype(int)


def _plus(position: Array, more: Any) -> Array:
    return jnp.minimum(position, LONGEST - more) + more


def _minus(position: Array, less: int) -> Array:
    return jnp.maximum(position, less - LONGEST - 1) - less


def _padding(mask: AttentionMask, sizes: CallSizes) -> Array | None:
    """(1 or B, 1 or Lk): what `valid_lens` alone, or `allowed` alone, excludes for every query and head."""
    padding = None
    if mask.valid_lens is not None:
        lens = mask.valid_lens
        longest = lens if lens.ndim == 1 else lens.max(axis=1, initial=0)
        padding = jnp.arange(sizes.key_len) >= longest[:, None]
    if mask.allowed is not None:
        unused = ~_as_rank_4(mask.allowed).any(axis=(1, 2))
        padding = unused if padding is None else padding | unused
    return padding


def _as_rank_4(array: Any) -> Any:
    return None if array is None else array.reshape((1,) * (4 - array.ndim) + array.shape)
