"""Masks that two models write differently, as allowed keys or as numbers to be added; and the padding in them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.values import Place

EXCLUDED = -1e3
"""A number that is added to scores excludes a key if it is below this."""


def allowed_in(mask: NDArray) -> NDArray | None:
    """Return a mask as bool (B, 1 or H, 1 or Lq, Lk), True at allowed keys; None if the array is no mask.

    >>> allowed_in(np.array([[0.0, -3e38]])).tolist(), allowed_in(np.array([[1, 0]])).tolist()
    ([[[[True, False]]]], [[[[True, False]]]])
    """
    if not 2 <= mask.ndim <= 4:
        return None
    if mask.dtype.kind == "f":
        excluding = mask < EXCLUDED
        if not (excluding | (mask == 0.0)).all() and not np.isin(mask, (0.0, 1.0)).all():
            return None
        allowed = ~excluding if excluding.any() or (mask == 0.0).all() else mask != 0.0
    elif mask.dtype.kind == "b" or np.isin(mask, (0, 1)).all():
        allowed = mask.astype(bool)
    else:
        return None
    return np.expand_dims(allowed, {2: (1, 2), 3: (1,), 4: ()}[mask.ndim])


def translated(port: NDArray, original: NDArray, *, other: bool = False) -> tuple[NDArray, int] | None:
    """Return (the port's mask in the original's form, number of entries that differ); None if either is no mask.

    True in a bool mask may allow a key or exclude it. The port's mask is read with the meaning that gives fewer
    differences or, if `other` is True, with the opposite one. If both are additive float masks, which have one meaning
    only, `other=True` returns None.

    >>> translated(np.array([[True, False, False]]), np.array([[False, True, True]]))[1]
    0
    """
    theirs, own = allowed_in(port), allowed_in(original)
    if theirs is None or own is None or (port.dtype.kind in "iu" and original.dtype.kind in "iu"):
        return None
    try:
        shape = np.broadcast_shapes(theirs.shape, own.shape)
    except ValueError:
        return None
    theirs, own = np.broadcast_to(theirs, shape), np.broadcast_to(own, shape)
    known = port.dtype.kind == original.dtype.kind == "f"
    if other and known:
        return None
    if not known and (int((theirs != own).sum()) * 2 > own.size) != other:
        theirs = ~theirs
    different = int((theirs != own).sum())
    if not different:
        return original, 0
    if original.dtype.kind == "f":
        lowest = original.min() if (original < EXCLUDED).any() else np.finfo(original.dtype).min
        theirs = np.where(theirs, original.dtype.type(0), original.dtype.type(lowest))
    fits = theirs.size == original.size
    return (theirs.reshape(original.shape) if fits else theirs).astype(original.dtype), different


Run = Callable[[Mapping[Place, NDArray]], Mapping[Place, NDArray]]
"""What a module gives in float64 on other arrays than it was given."""


def uncounted_rows(exact_on: Run, given: Mapping[Place, NDArray], *, other_mask: bool) -> NDArray | None:
    """Return bool (B, L), True at output rows that should not be compared; None if no such rows were found.

    A row of padding is found by its inputs, which change no other row. If `other_mask` is True, fully masked queries
    are found too, by their outputs, which are linear in the inputs (such as the mean of all values).

    Args:
        exact_on: a function that runs the module on other inputs (key path -> array) in float64.
        given: key path -> input of the module, masks among them.
        other_mask: whether a mask differs from the original's own.
    """
    module = _Module(exact_on, given, exact_on(given))
    found = [_padding(module), _without_key(module) if other_mask else None]
    rows = [one for one in found if one is not None]
    return rows[0] if len(rows) == 1 or len({one.shape for one in rows}) == 2 else rows[0] | rows[1] if rows else None


@dataclass(frozen=True)
class _Module:
    """What runs a module, what it is given, and what it gives on that."""

    run: Run
    given: Mapping[Place, NDArray]
    exact: Mapping[Place, NDArray]

    def on(self, others: Mapping[Place, NDArray]) -> Mapping[Place, NDArray]:
        """What it gives with others of its arrays."""
        return self.run({**self.given, **others})


def _padding(module: _Module) -> NDArray | None:
    readings = ((place, *one) for place, array in module.given.items() for one in _excluded_keys(array))
    for place, rows, allowing in readings:
        rows = rows & ~rows.all(axis=1, keepdims=True)  # in an item of padding alone there is no other row
        moved = _moved(module.given, rows, 1.0) if rows.any() else {}
        if not moved:
            continue
        kept = not _changed(module.on(moved), module.exact, ~rows)
        if kept and _are_keys(module, moved, place, rows, allowing):
            return rows
    return None


def _are_keys(module: _Module, moved: Mapping[Place, NDArray], mask: Place, rows: NDArray, allowing: float) -> bool:
    """Whether the mask is what keeps these rows from others.

    With the keys allowed in one item, other rows of that item, and of no other, depend on each array that does anything
    in these rows.
    """
    item = int(rows.any(axis=1).argmax())
    opened = module.given[mask].copy()
    opened[item, ..., rows[item]] = allowing
    of_item = np.zeros_like(rows)
    of_item[item] = True
    before = module.on({mask: opened})
    if _changed(before, module.exact, ~of_item):
        return False
    found = False
    for place, array in moved.items():
        after = module.on({mask: opened, place: array})
        if _changed(after, before, of_item & rows):
            found = True
            if not _changed(after, before, of_item & ~rows):
                return False  # rows of another sequence, or of none
    return found


def _changed(one: Mapping[Place, NDArray], other: Mapping[Place, NDArray], rows: NDArray) -> bool:
    """Whether what a module gives has other numbers in these rows (B, L)."""
    return any(
        not np.array_equal(one[place][rows], array[rows], equal_nan=True)
        for place, array in other.items()
        if array.dtype.kind == "f" and array.shape[:2] == rows.shape
    )


def _without_key(module: _Module) -> NDArray | None:
    given = module.given
    for mask in given.values():
        allowed = allowed_in(mask)
        for reading in () if allowed is None else (allowed, ~allowed):
            rows = ~reading.any(axis=(1, 3))
            everywhere = np.ones_like(rows)
            moved = [_moved(given, everywhere, side) for side in (1.0, -1.0)]
            keys = any(one.ndim > 2 and one.shape[:2] == reading.shape[::3] for one in given.values())
            if not keys or reading.shape[-1] < 2 or rows.all() or not rows.any() or not moved[0]:
                continue
            up, down = map(module.on, moved)
            bent = [
                np.abs(up[place] + down[place] - 2 * array).reshape(*rows.shape, -1).max(axis=-1) / np.abs(array).max()
                for place, array in module.exact.items()
                if array.dtype.kind == "f" and array.ndim > 2 and array.shape[:2] == rows.shape and array.any()
            ]
            if bent and all((one[rows] < STRAIGHT).all() and one[~rows].max() > BENT for one in bent):
                return rows
    return None


STRAIGHT, BENT = 1e-6, 1e-4
"""A row of numbers bends less than this, as a fraction of the largest number, or more."""


def _moved(given: Mapping[Place, NDArray], rows: NDArray, step: float) -> dict[Place, NDArray]:
    """The arrays (B, L, ...) of numbers with others in some rows."""
    return {
        place: array + step * np.where(_beside(rows, array), 1 + np.abs(array), 0.0)
        for place, array in given.items()
        if array.dtype.kind == "f" and array.ndim > 2 and array.shape[:2] == rows.shape
    }


def counted_in(array: NDArray, padding: NDArray) -> NDArray | None:
    """Return bool of `array`'s shape, True at elements to compare. Elements in padding are False unless inf or NaN.

    `padding`: bool (B, L). `array`: (B, L, D), (B, H, L, Lk) or integers (B, L). Return None for other shapes.

    >>> counted_in(np.zeros((1, 2, 1)), np.array([[True, False]])).ravel().tolist()
    [False, True]
    """
    if array.ndim < 3 and array.dtype.kind == "f":  # (B, D), what a model pools, may have as many numbers as tokens
        return None
    tokens, queries = array.shape[:2] == padding.shape, array.ndim == 4 and array.shape[::2] == padding.shape
    if tokens == queries:
        return None
    return ~(_beside(padding, array) if tokens else padding[:, None, :, None]) | ~np.isfinite(array)


def _beside(rows: NDArray, array: NDArray) -> NDArray:
    """The rows (B, L), with further axes for those of an array (B, L, ...)."""
    return rows.reshape(*rows.shape, *(1,) * (array.ndim - 2))


def _excluded_keys(mask: NDArray) -> Iterator[tuple[NDArray, float]]:
    """The keys (B, Lk) that a mask excludes for every query of their item, and what allows them: for each reading."""
    allowed = allowed_in(mask)
    if allowed is not None:
        one, zero = (0.0, 0.0) if mask.dtype.kind == "f" and (mask < EXCLUDED).any() else (1, 0)
        yield ~allowed.any(axis=(1, 2)), one
        yield allowed.all(axis=(1, 2)), zero
