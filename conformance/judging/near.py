"""Near: whether two runs of variants agree within rounding, which is wider than what a right answer is allowed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SLACK = 100.0
"""Factor on the bound, because a bug changes the numbers from which the bound was computed."""

RELATIVE = 1000.0
"""Roundoffs of the array's largest number that are allowed besides."""

SLACK_INSIDE, RELATIVE_INSIDE = 10.0, 100.0
"""In place of these where a subject computes in a narrower dtype inside: the defaults could hide small bugs."""


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

    def near(self, array: NDArray, other: NDArray, bound: NDArray | float, counts: NDArray | None = None) -> bool:
        """Whether `other` is `array` wherever it counts; a NaN equals a NaN, an infinity its like."""
        if array.shape != other.shape:
            return False
        alike = array == other
        if alike.all():
            return True
        with np.errstate(all="ignore"):
            magnitude = np.abs(array[np.isfinite(array)]).max(initial=0.0)
            allowed = self.slack * bound + self.relative * self.unit * magnitude
            near = np.abs(array - other) <= allowed
        good = near | alike | (np.isnan(array) & np.isnan(other))
        return bool((good if counts is None else good | ~counts).all())
