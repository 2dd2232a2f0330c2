"""Changes of the array at a point: a factor, another order, a mix of neighbours, a function; each also in places only.

A change is called with the array, the name of its point and the View. Where it is impossible (an axis of one, a
matrix that is not square) it leaves the array as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from conformance.trials.layer import View
from conformance.trials.points import axis_of


class Change(Protocol):
    """A change, with words for it, such as "times 0.9"."""

    @property
    def words(self) -> str: ...

    def __call__(self, array: NDArray, point: str, view: View) -> NDArray: ...

    def counterparts(self) -> list[Change]:
        """Changes that may have the same effect at another point: itself and its inverse. Empty: none is tried."""
        ...


@dataclass(frozen=True)
class Own:
    """A function of (array, view) for one point alone."""

    words: str
    function: Callable[[NDArray, View], NDArray]

    def __call__(self, array: NDArray, point: str, view: View) -> NDArray:
        return self.function(array, view)

    def counterparts(self) -> list[Change]:
        return []


@dataclass(frozen=True)
class Factor:
    """A factor, which may depend on sizes."""

    name: str
    number: Callable[[View], float]
    inverted: bool = False

    @property
    def words(self) -> str:
        return f"times {self.name}"

    def __call__(self, array: NDArray, point: str, view: View) -> NDArray:
        number = self.number(view)
        return array * (1.0 / number if self.inverted else number)

    def counterparts(self) -> list[Change]:
        return [self, Factor(self.name, self.number, not self.inverted)]


@dataclass(frozen=True)
class Order:
    """Another order along an axis: `indices(size, view)` says which element stands at each place."""

    role: str
    name: str
    indices: Callable[[int, View], NDArray]
    undone: bool = False

    @property
    def words(self) -> str:
        return f"{self.name} along the {self.role} axis"

    def __call__(self, array: NDArray, point: str, view: View) -> NDArray:
        axis = axis_of(point, self.role)
        if axis is None or array.shape[axis] < 2:
            return array
        indices = self.indices(array.shape[axis], view)
        return np.take(array, np.argsort(indices, kind="stable") if self.undone else indices, axis=axis)

    def counterparts(self) -> list[Change]:
        return [self, Order(self.role, self.name, self.indices, not self.undone)]


@dataclass(frozen=True)
class Mixed:
    """Each element mixed with its neighbour along an axis; one without a neighbour stays."""

    role: str
    step: int
    share: float
    around: bool = False

    @property
    def words(self) -> str:
        what = "replaced by" if self.share == 1.0 else f"mixed with {self.share:g} of"
        end = ", around the end" if self.around else ""
        return f"each {self.role} {what} number {self.step:+d} from it{end}"

    def __call__(self, array: NDArray, point: str, view: View) -> NDArray:
        axis = axis_of(point, self.role)
        if axis is None or array.shape[axis] < 2:
            return array
        size = array.shape[axis]
        places = np.arange(size) + self.step
        places = places % size if self.around else places.clip(0, size - 1)
        other = np.take(array, places, axis=axis)
        return other if array.dtype == bool or self.share == 1.0 else array + self.share * (other - array)

    def counterparts(self) -> list[Change]:
        return [self]


@dataclass(frozen=True)
class Bent:
    """A function of each number."""

    words: str
    function: Callable[[NDArray], NDArray]

    def __call__(self, array: NDArray, point: str, view: View) -> NDArray:
        return self.function(array)

    def counterparts(self) -> list[Change]:
        return []


Where = Callable[[NDArray, str, View], NDArray | bool]
"""(array, point, view) -> which elements: bool, broadcastable to the array, or one bool for all."""


@dataclass(frozen=True)
class Only:
    """Another change, in some places only."""

    change: Change
    where: str
    chosen: Where

    @property
    def words(self) -> str:
        return f"{self.change.words}, only {self.where}"

    def __call__(self, array: NDArray, point: str, view: View) -> NDArray:
        changed = self.change(array, point, view)
        if changed.shape != array.shape:
            return array
        return np.where(self.chosen(array, point, view), changed, array)

    def counterparts(self) -> list[Change]:
        return [Only(change, self.where, self.chosen) for change in self.change.counterparts()]
