"""Rotary positions in PyTorch: the tables of a call, and the turn of queries and keys; see `mha_core.parts.rotary`."""

from typing import Any

import torch
from torch import Tensor

from backends.torch.ops.framework import constant_result, numbers, transforms_are_active
from mha_core.call.arguments import CallSizes
from mha_core.call.call import Call
from mha_core.call.rotary import (
    RotaryInputs,
    Tables,
    check_positions,
    counted_tables,
    tables_of_call,
    traced_frequencies,
)
from mha_core.parts.rotary import Rotary, Table


def rotary_tables(call: Call[Tensor], settings: Rotary | None) -> Tables:
    """Return the tables (cosine and sine) for queries and for new keys, with the queries' dtype and device.

    Args:
        call: a result of `placed` that has been checked.
        settings: the layer's rotary settings. None: the tables are None.

    Raises:
        SpecError: a position is out of range (traced positions are not checked); or the layer's frequencies depend on
            the length, and positions are traced.
    """
    if settings is None:
        return Tables()
    given, x = call.rotary, call.queries
    given = given if given is not None and given.is_placed else None
    if given is not None and given.has_tables:
        return given.tables()
    past_len = 0 if call.past_keys is None else call.past_keys.shape[2]
    sizes = CallSizes(x.shape[0], x.shape[-2], past_len + call.keys.shape[-2], past_len)
    offset = call.mask.query_offset
    tracing = torch.compiler.is_compiling()
    if given is None and isinstance(offset, int) and not (tracing and settings.is_per_position):
        made = _counted(settings, offset, *sizes[:4])
    else:
        read = _read(given, offset, wait=settings.max_positions is None)
        if read is None:
            return _traced(given, offset, sizes, settings, x)
        made = tables_of_call(settings, *read, sizes).map(torch.tensor)
    return made.map(lambda table: table.to(device=x.device, dtype=x.dtype))


def rotate(x: Tensor, table: Table | None, settings: Rotary | None) -> Tensor:
    """Return x (B, heads, L, d), rotated: each pair (a, b) of channels becomes (a cos - b sin, b cos + a sin)."""
    if table is None or settings is None:
        return x
    cos, sin = table.cos[:, None], table.sin[:, None]  # (B, 1, L, r / 2)
    part = settings.turning(x.shape[-1])
    turning = x[..., part]
    if settings.interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack(_turned(a, b, cos, sin), dim=-1).flatten(-2)
    else:
        a, b = turning.chunk(2, dim=-1)
        turned = torch.cat(_turned(a, b, cos, sin), dim=-1)
    if turning.shape == x.shape:
        return turned
    return torch.cat((x[..., : part.start], turned, x[..., part.stop :]), dim=-1)


def _turned(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The two channels of each pair after the turn; addcmul reads and writes once where two operations do twice."""
    return torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)


@constant_result
def _counted(settings: Rotary, query_offset: int, batch: int, query_len: int, key_len: int, past_len: int) -> Tables:
    if any(isinstance(size, torch.SymInt) for size in (query_len, key_len, past_len)):
        traced_frequencies(settings)  # says that it needs them
    return counted_tables(settings, query_offset, CallSizes(batch, query_len, key_len, past_len)).map(torch.tensor)


def _read(given: RotaryInputs | None, offset: Any, *, wait: bool) -> tuple[RotaryInputs | None, Any] | None:
    """Positions and query_offset in NumPy; None if they can't be read, or not without waiting for a device."""

    def read(array: Any) -> Any:
        return None if array is None else numbers(array.cpu() if wait and isinstance(array, Tensor) else array)

    if torch.compiler.is_compiling() or transforms_are_active():
        return None
    if given is None:
        known = read(offset)
        return None if known is None else (None, known)
    positions = given.map_arrays(lambda _, array: read(array))
    is_known = positions.positions is not None and (positions.key_positions is None) == (given.key_positions is None)
    return (positions, 0) if is_known else None


def _traced(given: RotaryInputs | None, offset: Any, sizes: CallSizes, settings: Rotary, x: Tensor) -> Tables:
    """The tables of positions whose numbers are not known: their angles are computed with the call, in float64."""
    axis, frequencies, factor = _frequencies(settings)
    dtype = torch.float32 if x.device.type == "mps" else torch.float64
    inverse = torch.tensor(frequencies, dtype=dtype, device=x.device)

    def of(positions: Tensor) -> Table:
        known = numbers(positions)
        if known is not None:
            check_positions(settings, known)
        wide = positions.to(inverse.dtype)
        of_pairs = wide[axis].movedim(0, -1) if wide.ndim == 3 else torch.atleast_2d(wide)[..., None]
        angle = of_pairs * inverse  # (1 or B, L, r / 2)
        return Table((factor * angle.cos()).to(x.dtype), (factor * angle.sin()).to(x.dtype))

    if given is not None:
        queries = of(given.positions)
        return Tables(queries, queries if given.key_positions is None else of(given.key_positions))
    # An integer stays one: a tensor of it would be compiled anew for each.
    first = offset if isinstance(offset, int) else offset.to(device=x.device, dtype=torch.int64).reshape(-1, 1)
    keys = torch.arange(sizes.past_len, sizes.key_len, device=x.device)
    return Tables(of(first + torch.arange(sizes.query_len, device=x.device)), of(keys))


@constant_result
def _frequencies(settings: Rotary) -> tuple[list[int], list[float], float]:
    axis, inverse, factor = traced_frequencies(settings)
    return axis.tolist(), inverse.tolist(), factor  # of a constant tensor a compiler would take the size for a symbol
