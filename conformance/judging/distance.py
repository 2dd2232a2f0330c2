"""How far apart two arrays are, and at worst; and whether two runs of variants agree within rounding."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers


@dataclass(frozen=True)
class Worst:
    """The element in which two arrays are furthest apart, relative to the allowed error there.

    Attributes:
        index: the index of the element; () in empty arrays.
        error, allowed: the error and the allowed error of this element.
        ratio: error / allowed; see `error_ratio`.
        wrong: how many elements have a ratio above 1.
        largest: the largest error of all elements.
    """

    index: tuple[int, ...] = ()
    error: float = 0.0
    allowed: float = 0.0
    ratio: float = 0.0
    wrong: int = 0
    largest: float = 0.0


def worst(array: NDArray, wanted: NDArray, allowed: NDArray | float, counts: NDArray | None = None) -> Worst:
    """Return the element in which two arrays of one shape are furthest apart, relative to the allowed error.

    Args:
        array, wanted: the two arrays.
        allowed: the allowed error of each element, broadcast to the arrays.
        counts: bool, broadcast to the arrays: True at the elements to compare. Default: all.

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
    """Return error / allowed error, element by element; 0 where the error is 0, even if 0 is allowed."""
    with any_numbers:
        ratio = np.where(error > 0.0, error / allowed, 0.0)
    return np.where(np.isinf(error), np.inf, ratio)  # a NaN or infinity in the wrong place is never allowed


def distance(array: NDArray, wanted: NDArray) -> NDArray:
    """Return |array - wanted|. Where one is NaN or infinite: 0 if both are equal or both NaN, else infinity."""
    with any_numbers:
        error = np.abs(array - wanted)
    alike = (array == wanted) | (np.isnan(array) & np.isnan(wanted))
    both_finite = np.isfinite(array) & np.isfinite(wanted)
    return np.where(alike, 0.0, np.where(both_finite, error, np.inf))


SLACK = 100.0
"""Factor on the bound, because a bug changes the numbers from which the bound was computed."""

RELATIVE = 1000.0
"""Roundoffs of the array's largest number that are allowed besides."""

SLACK_INSIDE, RELATIVE_INSIDE = 10.0, 100.0
"""In place of these where a subject computes in a narrower dtype inside: the defaults could hide small bugs."""

SLACK_HALF, RELATIVE_HALF = 4.0, 8.0
"""In place of all of them in half precision, where 1000 roundoffs are as large as the array.

With every step of the reference rounded to bfloat16, a bug of the zoo is then still found to be itself in all of 1156
runs, and 98 % of the other bugs are told from it; by SLACK and RELATIVE 2 % were.
"""

HALF = 2.0**-11
"""Unit roundoff of float16; that of bfloat16 is greater."""


@dataclass(frozen=True)
class Nearness:
    """A rule: arrays are near if |a - b| <= slack * (bound on the error) + relative * unit * (largest |a|).

    Args:
        unit: the unit roundoff of the arithmetic.
        slack, relative: the two factors.
    """

    unit: float
    slack: float = SLACK
    relative: float = RELATIVE

    @classmethod
    def of(cls, unit: float, *, inside: bool = False) -> Self:
        """Return the rule for a unit roundoff. `inside`: whether it is of a narrower dtype that is used internally.

        Both factors are smaller with `inside` and in half precision, where the defaults could hide small bugs.

        >>> Nearness.of(2.0**-24).relative, Nearness.of(2.0**-24, inside=True).relative, Nearness.of(2.0**-8).relative
        (1000.0, 100.0, 8.0)
        """
        if unit >= HALF:
            return cls(unit, SLACK_HALF, RELATIVE_HALF)
        return cls(unit, SLACK_INSIDE, RELATIVE_INSIDE) if inside else cls(unit)

    def near(self, array: NDArray, other: NDArray, bound: NDArray | float, counts: NDArray | None = None) -> bool:
        """Return whether `other` is near `array` where `counts` (None: everywhere). NaN is near NaN, inf near inf."""
        if array.shape != other.shape:
            return False
        alike = array == other
        if alike.all():
            return True
        with any_numbers:
            magnitude = np.abs(array).max(initial=0.0)
            if not np.isfinite(magnitude):
                magnitude = np.abs(array[np.isfinite(array)]).max(initial=0.0)
            allowed = self.slack * bound + self.relative * self.unit * magnitude
            near = np.abs(array - other) <= allowed
        good = near | alike | (np.isnan(array) & np.isnan(other))
        return bool((good if counts is None else good | ~counts).all())
