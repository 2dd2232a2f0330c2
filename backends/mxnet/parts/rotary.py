"""Rotary positions in MXNet: the tables of a call, and the turn of queries and keys; see `mha_core.parts.rotary`."""

from __future__ import annotations

from backends.mxnet.ops.framework import mx, numbers, to_array
from mha_core.call.call import Call
from mha_core.call.rotary import Tables, counted_tables, tables_of_call
from mha_core.call.sizes import CallSizes
from mha_core.parts.rotary import Rotary, Table


@mx.util.use_np
def rotary_tables(call: Call[mx.np.ndarray], settings: Rotary | None) -> Tables:
    """Cosine and sine of the positions of queries and new keys, in the dtype of the queries, in their context.

    Args:
        call: as `placed` gives it, and checked.
        settings: those of the layer; None gives no tables.

    Raises:
        SpecError: a position that is out of range.
    """
    if settings is None:
        return Tables()
    given, x, offset = call.rotary, call.queries, call.mask.query_offset
    given = given if given is not None and given.is_placed else None
    if given is not None and given.has_tables:
        return given.tables()
    past_len = 0 if call.past_keys is None else call.past_keys.shape[2]
    sizes = CallSizes(x.shape[0], x.shape[-2], past_len + call.keys.shape[-2], past_len)
    if given is None and isinstance(offset, int):
        made = counted_tables(settings, offset, sizes)
    else:
        read = None if given is None else given.map_arrays(lambda _, array: numbers(array))
        made = tables_of_call(settings, read, numbers(offset), sizes)
    return made.map(lambda table: to_array(table, x.dtype, x.ctx))


@mx.util.use_np
def rotate(x: mx.np.ndarray, table: Table | None, settings: Rotary | None) -> mx.np.ndarray:
    """(B, heads, L, d): each pair (a, b) of channels becomes (a cos - b sin, b cos + a sin); the others stay."""
    if table is None or settings is None or x.size == 0:
        return x
    cos, sin = table.cos[:, None], table.sin[:, None]  # (B, 1, L, r / 2)
    part = settings.turning(x.shape[-1])
    turning = x[..., part]
    if settings.interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = mx.np.stack((a * cos - b * sin, b * cos + a * sin), axis=-1).reshape(turning.shape)
    else:
        half = turning.shape[-1] // 2
        a, b = turning[..., :half], turning[..., half:]
        turned = mx.np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)
    if turning.shape == x.shape:
        return turned
    # Not with an empty third part, through which MXNet has no gradient.
    parts = (turned, x[..., part.stop :]) if settings.start == "first" else (x[..., : part.start], turned)
    return mx.np.concatenate(parts, axis=-1)
