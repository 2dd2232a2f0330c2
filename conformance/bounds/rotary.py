"""The bound of the turn by rotary positions, forward and backward."""

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.bounded import Bounded, Bounds
from mha_core.parts.rotary import Rotary, Table, pairs

ANGLE_ULPS = 4.0
"""Error of an angle in float64, in units of its last place: of the frequency, and of its product with the position."""


def rotated(b: Bounds, x: Bounded, side: str, *, back: bool = False) -> Bounded:
    """(B, heads, L, d): x rotated by the table of `side`, "queries" or "keys"; in the reverse direction if `back`."""
    settings = b.state.config.rotary
    assert settings is not None
    table: Table = getattr(b.state["rotary_tables"], side)
    cos, sin = _of_table(b, table.cos), _of_table(b, table.sin)
    if back:
        sin = Bounded(-sin.v, sin.e)
    r = b.rounding
    (first, second), (first_e, second_e) = pairs(x.v, settings), pairs(x.e, settings)
    one, other = Bounded(first, first_e), Bounded(second, second_e)
    opposite = Bounded(-sin.v, sin.e)
    turned = r.plus(r.elementwise(one, cos), r.elementwise(other, opposite))
    beside = r.plus(r.elementwise(other, cos), r.elementwise(one, sin))
    return Bounded(_put(x.v, turned.v, beside.v, settings), _put(x.e, turned.e, beside.e, settings))


def _put(x: NDArray, first: NDArray, second: NDArray, settings: Rotary) -> NDArray:
    """X with these in place of the first and the second channels of all pairs."""
    made = np.array(x)
    places = pairs(made, settings)
    places[0][...], places[1][...] = first, second
    return made


def _of_table(b: Bounds, table: NDArray) -> Bounded:
    """A table (B, 1, L, r / 2): exact where it is given; else off by its angle's error, and rounded to the dtype."""
    given, r = b.state.inputs.rotary, b.rounding
    if given is not None and given.has_tables:
        return Bounded.exact(table[:, None])
    furthest = _furthest(b)
    angle = ANGLE_ULPS * 2.0**-53 * max(1.0, furthest)
    return r.store(Bounded(table[:, None], angle * np.ones_like(table[:, None])), lost=0.0)


def _furthest(b: Bounds) -> float:
    """The largest angle that a pair turns by is at most the largest position, as no frequency exceeds 1."""
    given, sizes = b.state.inputs.rotary, b.state.sizes
    if given is None or not given.is_placed:
        return float(np.max(b.state.inputs.mask.query_offset, initial=0)) + sizes.query_len + sizes.key_len
    return max(float(np.max(x, initial=0)) for x in (given.positions, given.key_positions) if x is not None)
