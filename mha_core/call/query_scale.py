"""The factors by which the queries of a call are multiplied, in a layer with a query scale.

Without a word from the caller, query i stands at query_offset + i.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.call.rotary import RotaryInputs, check_not_negative, positions_of
from mha_core.call.sizes import ArraySpec, CallSizes
from mha_core.errors import SpecError
from mha_core.parts.query_scale import QueryScale


def scale_of_call(settings: QueryScale, given: RotaryInputs | None, query_offset: Any, sizes: CallSizes) -> NDArray:
    """(1 or B, Lq): the factors of a call whose numbers are known, in NumPy: as they are given, else in float64."""
    if given is not None and given.query_scale is not None:
        return np.atleast_2d(given.query_scale)
    positions, _ = positions_of(given, query_offset, sizes)
    check_not_negative(positions)
    return np.atleast_2d(settings.factors(positions))


@lru_cache(maxsize=16)
def counted_scale(settings: QueryScale, query_offset: int, sizes: CallSizes) -> NDArray:
    """`scale_of_call` where positions are counted from a number; kept, since most calls are like the one before."""
    made = scale_of_call(settings, None, query_offset, sizes)
    made.flags.writeable = False
    return made


def check_query_scale(
    given: RotaryInputs | None,
    settings: QueryScale | None,
    sizes: CallSizes,
    dtype: str,
    describe: Callable[[str, Any], ArraySpec],
) -> None:
    """Raise SpecError unless a call has the factors, or what they are made from, by shapes and dtypes alone.

    Args:
        given: what the call has of positions.
        settings: those of the layer; None if it has no query scale.
        sizes, dtype: of the call.
        describe: name and array -> ArraySpec; SpecError for what is no array.
    """
    array = None if given is None else given.query_scale
    if settings is None:
        if array is not None:
            raise SpecError("query_scale belongs to a layer with a query scale. Got query_scale=None in its config.")
        return
    batch, query_len = sizes.batch, sizes.query_len
    wanted = f"(Lq,)=({query_len},) or (B, Lq)=({batch}, {query_len})"
    if array is None:
        if settings.rule is None:
            raise SpecError(f"query_scale must be given, {wanted}: the layer has no rule for it.")
        if given is not None and given.has_tables:
            raise SpecError(f"query_scale must be given, {wanted}: rotary tables don't say where queries stand.")
        return
    shape, kind = describe("query_scale", array)
    if kind != dtype:
        raise SpecError(f"query_scale must have the dtype of queries, {dtype}. Got {kind}.")
    sizes_of = (batch, query_len)
    fits = len(shape) in (1, 2) and all(
        size is None or other is None or size == other
        for size, other in zip(shape, sizes_of[2 - len(shape) :], strict=True)
    )
    if not fits:
        raise SpecError(f"query_scale must have shape {wanted}. Got {shape}.")
