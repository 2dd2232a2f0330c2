"""Near: whether two runs of variants agree within rounding, which is wider than what a right answer is allowed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers

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
    """How near two arrays must be.

    Args:
        unit: the unit roundoff of the arithmetic.
        slack, relative: in place of SLACK and RELATIVE.
    """

    unit: float
    slack: float = SLACK
    relative: float = RELATIVE

    @classmethod
    def of(cls, unit: float, *, inside: bool = False) -> Nearness:
        """That of a dtype; `inside`: one that a subject computes in, narrower than it says.

        >>> Nearness.of(2.0**-24).relative, Nearness.of(2.0**-24, inside=True).relative, Nearness.of(2.0**-8).relative
        (1000.0, 100.0, 8.0)
        """
        if unit >= HALF:
            return cls(unit, SLACK_HALF, RELATIVE_HALF)
        return cls(unit, SLACK_INSIDE, RELATIVE_INSIDE) if inside else cls(unit)

    def near(self, array: NDArray, other: NDArray, bound: NDArray | float, counts: NDArray | None = None) -> bool:
        """Whether `other` is `array` wherever it counts; a NaN equals a NaN, an infinity its like."""
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
