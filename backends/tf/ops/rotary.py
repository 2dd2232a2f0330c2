"""Rotary positions in TensorFlow: tables of a call, and the turn of queries and keys; see `mha_core.parts.rotary`."""

from typing import Any

import tensorflow as tf

from backends.tf.ops.framework import arange, numbers, shape_of, within
from mha_core.call.arguments import CallSizes
from mha_core.call.call import Call
from mha_core.call.checks import OFFSETS
from mha_core.call.rotary import RotaryInputs, Tables, counted_tables, tables_of_call, traced_frequencies
from mha_core.parts.rotary import Rotary, Table


def rotary_tables(call: Call[tf.Tensor], settings: Rotary | None) -> Tables:
    """Return the tables (cosine and sine) for queries and for new keys, in the dtype of the queries.

    Args:
        call: a result of `placed` that has been checked.
        settings: the layer's rotary settings. None: the tables are None.

    Raises:
        SpecError: a position is out of range (traced positions are not checked); or the layer's frequencies depend on
            the length, and positions are traced.
    """
    if settings is None:
        return Tables()
    given, x, offset = call.rotary, call.queries, call.mask.query_offset
    given = given if given is not None and given.is_placed else None
    if given is not None and given.has_tables:
        return given.tables()
    past_len = 0 if call.past_keys is None else shape_of(call.past_keys)[2]
    sizes = CallSizes(None, shape_of(x)[-2], past_len + shape_of(call.keys)[-2], past_len)
    read = _read(given, offset, sizes)
    if read is None:
        return _traced(given, offset, sizes, settings, x.dtype)
    if given is None and isinstance(offset, int):
        made = counted_tables(settings, offset, sizes)
    else:
        made = tables_of_call(settings, *read, sizes)
    return made.map(lambda table: tf.constant(table, x.dtype))


def rotate(x: tf.Tensor, table: Table | None, settings: Rotary | None) -> tf.Tensor:
    """Return x (B, heads, L, d), rotated: each pair (a, b) of channels becomes (a cos - b sin, b cos + a sin)."""
    if table is None or settings is None:
        return x
    cos, sin = table.cos[:, tf.newaxis], table.sin[:, tf.newaxis]  # (B, 1, L, r / 2)
    part = settings.turning(shape_of(x)[-1])
    turning = x[..., part]
    if settings.interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = tf.reshape(tf.stack((a * cos - b * sin, b * cos + a * sin), axis=-1), shape_of(turning))
    else:
        a, b = tf.split(turning, 2, axis=-1)
        turned = tf.concat((a * cos - b * sin, b * cos + a * sin), axis=-1)
    if x.shape[-1] == settings.width:
        return turned
    return tf.concat((x[..., : part.start], turned, x[..., part.stop :]), axis=-1)


def _read(given: RotaryInputs | None, offset: Any, sizes: CallSizes) -> tuple[RotaryInputs | None, Any] | None:
    """Positions and query_offset in NumPy; None if tracing does not know them, or a size that they go with."""
    if given is None:
        offset = numbers(offset)
        is_known = offset is not None and all(
            isinstance(size, int) for size in (sizes.query_len, sizes.key_len, sizes.past_len)
        )
        return (None, offset) if is_known else None
    read = given.map_arrays(lambda _, array: numbers(array))
    is_known = read.positions is not None and (read.key_positions is None) == (given.key_positions is None)
    return (read, 0) if is_known and isinstance(sizes.past_len, int) else None


def _traced(given: RotaryInputs | None, offset: Any, sizes: CallSizes, settings: Rotary, dtype: tf.DType) -> Tables:
    """The tables of positions that tracing does not know: their angles are computed with the call, in float64."""
    axis, inverse, factor = traced_frequencies(settings)

    def of(positions: tf.Tensor) -> Table:
        positions = tf.cast(positions, tf.float64)
        if positions.shape.rank == 3:
            of_pairs = tf.transpose(tf.gather(positions, axis), (1, 2, 0))
        else:
            of_pairs = (positions if positions.shape.rank == 2 else positions[tf.newaxis])[..., tf.newaxis]
        angle = of_pairs * inverse  # (1 or B, L, r / 2)
        return Table(tf.cast(factor * tf.cos(angle), dtype), tf.cast(factor * tf.sin(angle), dtype))

    if given is not None:
        queries = of(given.positions)
        return Tables(queries, queries if given.key_positions is None else of(given.key_positions))
    first = tf.reshape(tf.cast(within(offset, OFFSETS), tf.int64), (-1, 1))
    keys = tf.cast(sizes.past_len, tf.int64) + arange(sizes.key_len - sizes.past_len)
    return Tables(of(first + arange(sizes.query_len)), of(keys))
