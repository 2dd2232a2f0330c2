"""How far apart two arrays are, element by element, and at worst: the one place where that is computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers


@dataclass(frozen=True)
class Worst:
    """The element in which two arrays are furthest apart, for what is allowed there.

    Attributes:
        index: where it is; () in empty arrays.
        error, allowed: the error there, and the allowed error.
        ratio: error / allowed; see `error_ratio`.
        wrong: how many elements have a ratio above 1.
        largest: the largest error of all, which may be elsewhere.
    """

    index: tuple[int, ...] = ()
    error: float = 0.0
    allowed: float = 0.0
    ratio: float = 0.0
    wrong: int = 0
    largest: float = 0.0


def worst(array: NDArray, wanted: NDArray, allowed: NDArray | float, counts: NDArray | None = None) -> Worst:
    """Compare two arrays of one shape under any bound.

    Args:
        array, wanted: the arrays.
        allowed: the allowed error of each element, broadcast to them.
        counts: bool, broadcast to them: the elements that count. Default: all.

    >>> found = worst(np.array([1.0, 2.5, 7.0]), np.array([1.0, 2.0, 6.0]), np.array([0.1, 0.2, 4.0]))
    >>> found.index, found.error, found.ratio, found.wrong, found.largest
    ((1,), 0.5, 2.5, 1, 1.0)
    """
    error = distance(array.astype(np.float64), wanted)
    if not error.size:
        return Worst()
    if counts is not None:
        error = np.where(counts, error, 0.0)
    ratio = error_ratio(error, allowed)
    index = tuple(int(i) for i in np.unravel_index(np.argmax(ratio), ratio.shape))
    there = np.broadcast_to(allowed, error.shape)[index]
    wrong = int((ratio > 1.0).sum())
    return Worst(index, float(error[index]), float(there), float(ratio[index]), wrong, float(error.max()))


def error_ratio(error: NDArray, allowed: NDArray | float) -> NDArray:
    """Error / allowed error, element by element; 0 where there is none, whatever is allowed."""
    with any_numbers:
        ratio = np.where(error > 0.0, error / allowed, 0.0)
    return np.where(np.isinf(error), np.inf, ratio)  # a NaN or infinity in the wrong place is never allowed


def distance(array: NDArray, wanted: NDArray) -> NDArray:
    """|array - wanted|; a NaN or infinity is equal only to its like, and infinitely far from the rest."""
    with any_numbers:
        error = np.abs(array - wanted)
    alike = (array == wanted) | (np.isnan(array) & np.isnan(wanted))
    both_finite = np.isfinite(array) & np.isfinite(wanted)
    return np.where(alike, 0.0, np.where(both_finite, error, np.inf))
