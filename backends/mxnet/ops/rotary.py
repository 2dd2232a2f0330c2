"""Rotary positions in MXNet: the tables of a call, and the turn of queries and keys; see `mha_core.parts.rotary`."""

from collections.abc import Sequence

from backends.mxnet.ops.framework import mx, numbers, to_array
from backends.mxnet.ops.heads import swap
from backends.mxnet.ops.operators import operator, record, row_range, view
from mha_core.call.arguments import CallSizes
from mha_core.call.call import Call
from mha_core.call.rotary import Tables, counted_tables, tables_of_call
from mha_core.parts.rotary import Rotary, Table

_cut, _assign = operator("slice_axis", axis=-1), operator("_slice_assign")
_multiply, _add, _subtract = operator("_npi_multiply"), operator("_npi_add"), operator("_npi_subtract")


@mx.util.use_np
def rotary_tables(call: Call[mx.np.ndarray], settings: Rotary | None) -> Tables:
    """Return the tables (cosine and sine) for queries and for new keys, with the queries' dtype and context.

    Args:
        call: a result of `placed` that has been checked.
        settings: the layer's rotary settings. None: the tables are None.

    Raises:
        SpecError: a position is out of range.
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
    """Return x (B, heads, L, d), rotated: each pair (a, b) of channels becomes (a cos - b sin, b cos + a sin).

    Channels in no pair do not change. The gradient is computed as the inverse rotation, since MXNet's is slow.
    """
    if table is None or settings is None or x.size == 0:
        return x
    with mx.autograd.pause():
        turned = _turned(x, table, settings)

    def backward(cotangents: Sequence[mx.np.ndarray], wanted: Sequence[bool]) -> list[mx.np.ndarray | None]:
        with mx.autograd.pause():
            d_table = _table_gradients(cotangents[0], x, table, settings) if any(wanted[1:]) else (None, None)
            return [_turned(cotangents[0], Table(table.cos, -table.sin), settings), *d_table]

    record([x, *table], [turned], backward)
    return turned


def _turned(x: mx.np.ndarray, table: Table, settings: Rotary) -> mx.np.ndarray:
    """The turn without its gradient."""
    cos, sin = table.cos[:, None], table.sin[:, None]  # (B, 1, L, r / 2)
    a, b = _pairs(x, settings)
    halves = mx.np.empty((2, *a.shape), a.dtype, ctx=a.ctx)
    first, second = (view(row_range(halves, half, half + 1), a.shape) for half in (0, 1))
    _subtract(_multiply(a, cos), _multiply(b, sin), out=first)
    _add(_multiply(b, cos), _multiply(a, sin), out=second)
    width = 2 * a.shape[3]
    if settings.interleaved:
        turned = swap(view(halves, (2, -1)), axes=(1, 0))
    else:
        turned = swap(view(halves, (2, -1, width // 2)), axes=(1, 0, 2))
    turned = view(turned, (*x.shape[:3], width))
    if width == x.shape[3]:
        return turned
    part = settings.turning(x.shape[3])
    return _assign(x, turned, begin=(0, 0, 0, part.start), end=(*x.shape[:3], part.stop))


def _pairs(x: mx.np.ndarray, settings: Rotary) -> tuple[mx.np.ndarray, mx.np.ndarray]:
    """The first and the second channels of all pairs, (B, heads, L, r / 2) each: two halves of one transpose."""
    part = settings.turning(x.shape[3])
    width = part.stop - part.start
    turning = x if width == x.shape[3] else _cut(x, begin=part.start, end=part.stop)
    if settings.interleaved:
        halves = swap(view(turning, (-1, 2)), axes=(1, 0))
    else:
        halves = swap(view(turning, (-1, 2, width // 2)), axes=(1, 0, 2))
    shape = (*x.shape[:3], width // 2)
    return view(row_range(halves, 0, 1), shape), view(row_range(halves, 1, 2), shape)


def _table_gradients(
    gradient: mx.np.ndarray, x: mx.np.ndarray, table: Table, settings: Rotary
) -> tuple[mx.np.ndarray, mx.np.ndarray]:
    """The gradients of cosine and sine that a caller gave, (1 or B, L, r / 2)."""
    (d_first, d_second), (a, b) = _pairs(gradient, settings), _pairs(x, settings)
    found = []
    for of_pairs in (d_first * a + d_second * b, d_second * a - d_first * b):
        of_items = mx.np.sum(of_pairs, axis=1)
        found.append(of_items if table.cos.shape[0] == x.shape[0] else mx.np.sum(of_items, axis=0, keepdims=True))
    return found[0], found[1]
