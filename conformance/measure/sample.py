"""Sample: a measured array beside the expected one. Change: what turns the one into the other. Setting: its call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.sizes import CallSizes
from mha_core.features import FEATURES
from mha_core.reference.state import State

ROUNDOFFS = 1000.0
"""Roundoffs of the largest number that two numbers may be apart and count as equal."""

MASKS = {"valid_lens": "lengths", "allowed": "a keep-mask", "causal": "a causal mask", "window": "a window"}
"""Sources of a mask that are no row of FEATURES, in words; a bias is one."""


@dataclass(frozen=True, eq=False)
class Setting:
    """One call, on whose sizes and features a change may depend. Calls of equal sizes are equal settings."""

    config: AttentionConfig
    sizes: CallSizes
    inputs: AttentionInputs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and (self.config, self.sizes) == (other.config, other.sizes)

    def __hash__(self) -> int:
        return hash((self.config, self.sizes))

    @cached_property
    def has(self) -> frozenset[str]:
        """Names of FEATURES and of MASKS: what the layer and the call have."""
        mask = self.inputs.mask
        masks = (name for name in MASKS if getattr(mask, name) is not None and getattr(mask, name) is not False)
        return frozenset((*(row.name for row in FEATURES if row.present(self.config, self.inputs)), *masks))

    @classmethod
    def of(cls, state: State | Problem) -> Setting:
        """Return the setting of a run, or of a problem."""
        return cls(state.config, state.sizes, state.inputs)


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


Apply = Callable[[NDArray, tuple[str, ...], Setting], NDArray]
"""(array, its axes, the call) -> the changed array. It raises DoesNotApply at sizes where it can't be made."""


@dataclass(frozen=True, eq=False)
class Change:
    """One change of an array.

    Args:
        slug: a name in kebab-case that no other change has, with its numbers: "times-0.9", "heads-reversed".
        words: to be read after "<the array> are the right ones ": "times 0.9".
        apply: makes the changed array.
        fix: what to do about it, where that is known, with the words in place of "{place}" and "{change}".
    """

    slug: str
    words: str
    apply: Apply
    fix: str = ""

    def made(self, array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        """Return the changed array; one without elements as it is. Bools count as 0 and 1."""
        if not array.size:
            return array
        with any_numbers:
            return self.apply(array * 1.0 if array.dtype == bool else array, axes, setting)


def elementwise(slug: str, words: str, function: Callable[[NDArray], NDArray]) -> Change:
    """Return the change of each element by itself."""
    return Change(slug, words, lambda array, axes, setting: function(array))
