"""Sample: a measured array beside the expected one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.kinds.change import Setting

ROUNDOFFS = 1000.0
"""Roundoffs of the largest number that two numbers may be apart and count as equal."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Two arrays of one shape.

    Args:
        measured, expected: equal shapes. A NaN in either is an element that was not measured.
        axes: the name of each axis: "item", "head", "query", "key", "channel", "input channel", ...
        setting: of the problem that they are from.
        unit: the relative error of what was measured.
        least: a lower limit of the absolute error within which numbers are equal.
    """

    measured: NDArray
    expected: NDArray
    axes: tuple[str, ...]
    setting: Setting
    unit: float = 1e-13
    least: float = 0.0

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """Where both arrays were measured."""
        return ~(np.isnan(self.measured) | np.isnan(self.expected))

    @cached_property
    def pairs(self) -> tuple[NDArray, NDArray]:
        """(expected, measured), both flat: the elements that are known in both."""
        return self.expected[self.known], self.measured[self.known]

    @cached_property
    def tolerance(self) -> float:
        """The absolute error within which numbers are equal."""
        measured = np.abs(self.measured[self.known])
        return max(self.least, ROUNDOFFS * self.unit * float(measured[np.isfinite(measured)].max(initial=0.0)))

    def is_given_by(self, array: NDArray) -> bool:
        """Return whether an array equals the measured one within its error, wherever that is known."""
        return array.shape == self.measured.shape and not bool(self.off(array).any())

    def off(self, array: NDArray) -> NDArray[np.bool_]:
        """Return where an array is known not to be the measured one."""
        with any_numbers:
            near = (np.abs(array - self.measured) <= self.tolerance) | (array == self.measured)
        return ~near & self.known

    @cached_property
    def differs(self) -> bool:
        """Whether the measured array is not the expected one."""
        return bool(self.off(self.expected).any())
