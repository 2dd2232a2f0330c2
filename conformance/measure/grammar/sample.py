"""Sample: a measured array beside the expected one. Change: what turns the one into the other. Setting: its call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.sizes import CallSizes
from mha_core.features import FEATURES
from mha_core.reference.state import State

T = TypeVar("T")

LEAST_KNOWN = 0.5
"""A change that reads places that were not measured is judged by the others, if they are at least this share."""

MASKS = {
    "valid_lens": "lengths",
    "allowed": "a keep-mask",
    "causal": "a causal mask",
    "window": "a window",
}
"""Sources of a mask that are no row of FEATURES, in words; a bias is one."""


@dataclass(frozen=True, eq=False)
class Setting:
    """One call, on whose sizes and features a change may depend. Calls of equal sizes are equal settings."""

    config: AttentionConfig
    sizes: CallSizes
    inputs: AttentionInputs | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and (self.config, self.sizes) == (other.config, other.sizes)

    def __hash__(self) -> int:
        return hash((self.config, self.sizes))

    @cached_property
    def has(self) -> frozenset[str]:
        """What the layer and the call have: names of FEATURES and of MASKS."""
        if self.inputs is None:
            return frozenset()
        mask = self.inputs.mask
        masks = (name for name in MASKS if getattr(mask, name) is not None and getattr(mask, name) is not False)
        return frozenset((*(row.name for row in FEATURES if row.present(self.config, self.inputs)), *masks))

    @classmethod
    def of(cls, state: State | Problem) -> Setting:
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
    def content(self) -> Hashable:
        """What it is made of: what is fitted to samples of equal contents is equal."""
        arrays = [(array.dtype, array.shape, array.tobytes()) for array in (self.measured, self.expected)]
        return *arrays, self.axes, self.setting, self.setting.has, self.unit, self.least

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        return ~(np.isnan(self.measured) | np.isnan(self.expected))

    @cached_property
    def is_whole(self) -> bool:
        """Whether every element is known in both."""
        return bool(self.known.all())

    @cached_property
    def pairs(self) -> tuple[NDArray, NDArray]:
        """(expected, measured), both flat: the elements that are known in both."""
        if self.is_whole:
            return self.expected.ravel(), self.measured.ravel()
        return self.expected[self.known], self.measured[self.known]

    @cached_property
    def tolerance(self) -> float:
        """The absolute error within which numbers are equal."""
        measured = np.abs(self.measured[self.known])
        return max(self.least, 1000.0 * self.unit * float(measured[np.isfinite(measured)].max(initial=0.0)))

    @cached_property
    def has_gaps(self) -> bool:
        """Whether the expected array has elements that are not known."""
        return bool(np.isnan(self.expected).any())

    def is_given_by(self, array: NDArray) -> bool:
        """Whether an array equals the measured one within its error, wherever that is known."""
        if array.shape != self.measured.shape:
            return False
        if self.is_whole:
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
    def differing(self) -> NDArray[np.bool_]:
        """Where the measured array is not the expected one."""
        return self.off(self.expected)

    @cached_property
    def differs(self) -> bool:
        return bool(self.differing.any())

    def within(self, part: NDArray[np.bool_]) -> Sample:
        """The sample with everything outside a part counted as not measured."""
        return replace(self, measured=np.where(part, self.measured, np.nan), least=self.tolerance)

    def after(self, array: NDArray) -> Sample:
        """The sample with another expected array."""
        return replace(self, expected=array)


def of_each(read: Iterable[T | None]) -> list[T] | None:
    """What was read of each; None as soon as one is None, and the others are not read."""
    found: list[T] = []
    for one in read:
        if one is None:
            return None
        found.append(one)
    return found


def long_axes(samples: Sequence[Sample]) -> tuple[tuple[int, str], ...]:
    """(position, name) of the axes along which some sample has several elements: of others nothing can be told."""
    several = np.max([sample.expected.shape for sample in samples], axis=0) > 1
    return tuple((position, name) for position, name in enumerate(samples[0].axes) if several[position])


Apply = Callable[[NDArray, tuple[str, ...], Setting], NDArray]
"""(array, its axes, the call) -> the changed array. It raises DoesNotApply at sizes where it can't be made."""


@dataclass(frozen=True, eq=False)
class Change:
    """One change of an array.

    Args:
        slug: a name in kebab-case that no other change has, with its numbers: "times-0.9", "heads-reversed".
        words: what was measured, to be read after "<the array> is the definition's ": "times 0.9".
        apply: makes the changed array.
    """

    slug: str
    words: str
    apply: Apply

    def __post_init__(self) -> None:
        object.__setattr__(self, "apply", _quiet(self.apply))
        object.__setattr__(self, "slug", self.slug.replace(" ", "-"))


def elementwise(slug: str, words: str, function: Callable[[NDArray], NDArray]) -> Change:
    """A change of each element by itself."""
    return Change(slug, words, lambda array, axes, setting: function(array))


def _quiet(apply: Apply) -> Apply:
    """The same of bools as 0 and 1, without NumPy's warnings, and an array without elements as it is."""

    def quietly(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        if not array.size:
            return array
        with any_numbers:
            return apply(array * 1.0 if array.dtype == bool else array, axes, setting)

    return quietly
