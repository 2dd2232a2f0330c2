"""Rotary positions in JAX: the tables of a call, and the turn of queries and keys; see `mha_core.parts.rotary`."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype
from jax import Array

from backends.jax.ops.framework import has_symbols, has_values, numbers
from backends.jax.ops.masks import within
from mha_core.call.arguments import CallSizes
from mha_core.call.call import Call
from mha_core.call.rotary import (
    BASE,
    DIGITS,
    RotaryInputs,
    Tables,
    check_positions,
    counted_tables,
    digit_tables,
    tables_of_call,
    traced_frequencies,
)
from mha_core.parts.rotary import Rotary, Table

LAST = 2**31 - 1
"""The last position that an integer of 32 bits holds."""


def rotary_tables(call: Call[Any], settings: Rotary | None, *, dtype: Dtype) -> Tables:
    """Return the tables (cosine and sine) for the positions of queries and of new keys.

    Args:
        call: a result of `placed` that has been checked.
        settings: the layer's rotary settings. None: the tables are None.
        dtype: the dtype of the tables, which must be the dtype of the projected queries and keys.

    Raises:
        SpecError: a position is out of range (traced positions are not checked); or the layer's frequencies depend on
            the length, and positions are traced.
    """
    if settings is None:
        return Tables()
    given, offset = call.rotary, call.mask.query_offset
    given = given if given is not None and given.is_placed else None
    if given is not None and given.has_tables:
        return given.tables().map(lambda table: table.astype(dtype))
    past_len = 0 if call.past_keys is None else call.past_keys.shape[2]
    sizes = CallSizes(call.queries.shape[0], call.queries.shape[-2], past_len + call.keys.shape[-2], past_len)
    if given is None and isinstance(offset, int) and not has_symbols(*sizes[1:4]):
        made = counted_tables(settings, offset, sizes)
    else:
        wait = settings.max_positions is None
        if has_symbols(*sizes[1:4]) or not all(
            _is_known(x, wait=wait) for x in ((offset,) if given is None else _positions(given))
        ):
            return _traced(given, offset, sizes, settings, dtype)
        made = tables_of_call(settings, given, offset, sizes)
    return made.map(lambda table: jnp.asarray(table.astype(dtype)))


def rotate(x: Array, table: Table | None, settings: Rotary | None) -> Array:
    """Return x (B, heads, L, d), rotated: each pair (a, b) of channels becomes (a cos - b sin, b cos + a sin).

    Channels in no pair do not change.
    """
    if table is None or settings is None:
        return x
    cos, sin = table.cos[:, None], table.sin[:, None]  # (B, 1, L, r / 2)
    part = settings.turning(x.shape[-1])
    turning = x[..., part]
    if settings.interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = jnp.stack((a * cos - b * sin, b * cos + a * sin), axis=-1).reshape(turning.shape)
    else:
        a, b = jnp.split(turning, 2, axis=-1)
        turned = jnp.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)
    if turning.shape == x.shape:
        return turned
    return jnp.concatenate((x[..., : part.start], turned, x[..., part.stop :]), axis=-1)


def _positions(given: RotaryInputs) -> tuple[Any, ...]:
    """The positions that a call has: of queries, and of keys if those differ."""
    return (given.positions,) if given.key_positions is None else (given.positions, given.key_positions)


def _is_known(integers: Any, *, wait: bool) -> bool:
    """Whether the numbers can be read; if not `wait`, then without waiting for a device."""
    return has_values(integers) if wait else numbers(integers) is not None


def _traced(given: RotaryInputs | None, offset: Any, sizes: CallSizes, settings: Rotary, dtype: Dtype) -> Tables:
    """The tables of positions whose numbers are not known."""
    axis, inverse, _ = traced_frequencies(settings)
    wide = jnp.promote_types(dtype, jnp.float32)
    cos, sin = (jnp.asarray(table.astype(wide)) for table in digit_tables(settings))
    pairs = np.arange(len(inverse))

    def of(positions: Any) -> Table:
        known = numbers(positions)
        if known is not None:
            check_positions(settings, known)
        positions = within(positions, (0, LAST), is_checked=False)
        if positions.ndim == 3:
            of_pairs = jnp.moveaxis(positions[axis], 0, -1)  # (1 or B, L, r / 2)
        else:
            of_pairs = (positions if positions.ndim == 2 else positions[None])[..., None]
        made = Table(cos[0, of_pairs % BASE, pairs], sin[0, of_pairs % BASE, pairs])
        for digit in range(1, DIGITS):
            index = digit, of_pairs // BASE**digit % BASE, pairs
            a, b = made
            made = Table(a * cos[index] - b * sin[index], b * cos[index] + a * sin[index])
        return Table(made.cos.astype(dtype), made.sin.astype(dtype))

    if given is not None:
        queries = of(given.positions)
        return Tables(queries, queries if given.key_positions is None else of(given.key_positions))
    first = jnp.reshape(within(offset, (-LAST - 1, LAST), is_checked=False), (-1, 1))
    rows = jnp.arange(sizes.query_len)
    keys = jnp.arange(sizes.past_len, sizes.key_len)
    return Tables(of(jnp.minimum(first, LAST - rows) + rows), of(keys))  # so that no sum overflows
