"""Parameter: the number of a family of arrays that gives the measured ones, by Gauss-Newton from the best of a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers

STEPS = 30
"""Most steps of Gauss-Newton."""

HOPEFUL = 8, 1e-2
"""After so many steps the distance must have shrunk by this factor: near a root each step squares it."""

LARGEST_DENOMINATOR = 16
"""Of a fraction that a number may be."""


def solve(distance: Callable[[float], NDArray], starts: Sequence[float], enough: float) -> float | None:
    """The number at which a vector is 0.

    Args:
        distance: the number -> a vector; NaN where it is not defined.
        starts: numbers to begin from.
        enough: the root is taken if no element is larger there.

    >>> round(solve(lambda c: np.array([c * c - 2.0, c - 2.0**0.5]), (0.5, 1.0, 3.0), 1e-9), 9)
    1.414213562
    """
    with any_numbers:
        sizes = [(_size(distance(start)), start) for start in starts]
        for size, start in sorted(sizes, key=lambda one: one[0])[:2]:
            found = _descended(distance, start, size) if np.isfinite(size) else None
            if found is not None and np.abs(distance(found)).max(initial=0.0) <= enough:
                return found
    return None


def _size(vector: NDArray) -> float:
    size = float(np.sqrt(np.mean(vector * vector))) if vector.size else 0.0
    return size if np.isfinite(size) else np.inf


def _descended(distance: Callable[[float], NDArray], number: float, size: float) -> float:
    first = size
    for step_number in range(STEPS):
        if step_number == HOPEFUL[0] and size > HOPEFUL[1] * first:
            return number
        here = distance(number)
        width = 1e-7 * max(abs(number), 1e-6)
        slope = (distance(number + width) - distance(number - width)) / (2.0 * width)
        square = float(slope @ slope)
        if not square or not np.isfinite(square):
            return number
        step = -float(slope @ here) / square
        for _ in range(8):
            after = _size(distance(number + step))
            if after < size:
                break
            step /= 2.0
        else:
            return number
        number, size = number + step, after
        if abs(step) <= 1e-16 * abs(number):
            return number
    return number


def snapped(number: float, relative: float, digits: int = 6) -> float:
    """The number of fewest decimal digits within a relative error, or a fraction; itself if there is none of so few.

    >>> snapped(0.30000000000004, 1e-10), snapped(0.3000001, 1e-10), snapped(0.66666666666, 1e-10)
    (0.3, 0.3000001, 0.6666666666666666)
    """
    for count in range(1, digits + 1):
        short = float(f"{number:.{count}g}")
        if abs(short - number) <= relative * abs(number):
            return short
    fraction = Fraction(number).limit_denominator(LARGEST_DENOMINATOR) if np.isfinite(number) else number
    return float(fraction) if abs(fraction - number) <= relative * abs(number) else number
