"""Sample: a measured array beside the expected one; Change: what turns the one into the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from mha_core.call.sizes import CallSizes
from mha_core.config import AttentionConfig

LEAST_KNOWN = 0.5
"""A change that reads places that were not measured is judged by the others, if they are at least this share."""


class Setting(NamedTuple):
    """The sizes on which a change may depend: those of the layer and of the call."""

    config: AttentionConfig
    sizes: CallSizes


@dataclass(frozen=True, eq=False)
class Sample:
    """Two arrays of one shape.

    Args:
        measured, expected: equal shapes. A NaN in either is a place that was not measured.
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
        return ~(np.isnan(self.measured) | np.isnan(self.expected))

    @cached_property
    def tolerance(self) -> float:
        """The absolute error within which numbers are equal."""
        measured = np.abs(self.measured[self.known])
        return max(self.least, 1000.0 * self.unit * float(measured[np.isfinite(measured)].max(initial=0.0)))

    @cached_property
    def has_gaps(self) -> bool:
        """Whether the expected array has places that are not known."""
        return bool(np.isnan(self.expected).any())

    @cached_property
    def _all_known(self) -> bool:
        return bool(self.known.all())

    def is_given_by(self, array: NDArray) -> bool:
        """Whether an array equals the measured one within its error, wherever that is known."""
        if array.shape != self.measured.shape:
            return False
        if self._all_known:
            with any_numbers:
                near = np.abs(array - self.measured) <= self.tolerance
                return bool(near.all()) or bool((near | (array == self.measured)).all())
        unread = np.isnan(array) & self.known
        if unread.any() and (not self.has_gaps or unread.sum() > LEAST_KNOWN * self.known.sum()):
            return False
        return not bool((self.off(array) & ~unread).any())

    def off(self, array: NDArray) -> NDArray[np.bool_]:
        """Where an array is known not to be the measured one."""
        with any_numbers:
            near = (np.abs(array - self.measured) <= self.tolerance) | (array == self.measured)
        return ~near & self.known

    @cached_property
    def differs(self) -> bool:
        return bool(self.differing.any())

    @cached_property
    def differing(self) -> NDArray[np.bool_]:
        """Where the measured array is not the expected one."""
        return self.off(self.expected)

    def within(self, part: NDArray[np.bool_]) -> Sample:
        """The sample with everything outside a part counted as not measured."""
        return replace(self, measured=np.where(part, self.measured, np.nan), least=self.tolerance)

    def after(self, array: NDArray) -> Sample:
        """The sample with another expected array."""
        return replace(self, expected=array)


@dataclass(frozen=True, eq=False)
class Change:
    """One change of an array.

    Args:
        slug: a name in kebab-case that no other change has, with its numbers: "times-0.9", "heads-reversed".
        words: what was measured, to be read after "<the stage> is the definition's ": "times 0.9".
        apply: (array, axes, setting) -> the changed array. It raises DoesNotApply at sizes where it can't be made.
    """

    slug: str
    words: str
    apply: Callable[[NDArray, tuple[str, ...], Setting], NDArray]

    def __post_init__(self) -> None:
        object.__setattr__(self, "apply", _quiet(self.apply))
        object.__setattr__(self, "slug", self.slug.replace(" ", "-"))


Apply = Callable[[NDArray, tuple[str, ...], Setting], NDArray]


def _quiet(apply: Apply) -> Apply:
    """The same without NumPy's warnings: a change may be tried on numbers for which it has no meaning.

    An array without elements stays as it is.
    """

    def quietly(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        if not array.size:
            return array
        with any_numbers:
            return apply(array, axes, setting)

    return quietly
