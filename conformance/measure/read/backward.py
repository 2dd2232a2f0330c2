r"""The array of every backward step, solved for by least squares from the gradients.

All gradients are linear in the array x of one step, if the steps after it are right. So where x is a sum of known
arrays, x = sum_k c_k x_k, the subject's gradients g tell the numbers c:

    g = g_0 + sum_k c_k (g_k - g_0),    g_k: the model's gradients with x_k there, g_0: with 0

With unit arrays as x_k every element of x is solved for. A residual says that the fault is not at that step or before
it. Where the gradients do not tell every element, as of scores, x is solved for as a linear map of one axis of the
definition's array, which has fewer numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.evidence import Evidence
from conformance.measure.read.descent import least_squares
from conformance.zoo.bug import DoesNotApply, pipelines
from mha_core.reference import pipeline as reference
from mha_core.reference.backward import collect_gradients
from mha_core.reference.state import State, Step
from mha_core.stages import GRADIENT, is_gradient

Gradients = dict[str, NDArray]

LARGEST = 200
"""Most elements of an array that is read."""

NEGLIGIBLE = 1e-11
"""A change of less than this part of the largest gradient is none."""

CONDITION = 1e-7
"""Singular values below this part of the largest one count as 0."""

NONE = 1e-7
"""A part of a mix that counts as absent."""

TOPICS = (("values", "v_proj"), ("queries", "q_proj"), ("keys", "k_proj"), (".weight",), (".bias",), ("score.",))
"""Parts of the names of gradients that another fault may have changed as well: they are left out in turn."""


@dataclass(frozen=True, eq=False)
class Place:
    """An array of the backward direction: a step's result, or one of the gradients that it gives by name.

    Args:
        step: the step.
        words: the array in words, the subject of a sentence.
        axes: the name of each axis.
        gradient: the name by which the subject shows it, if it does.
    """

    step: str
    words: str
    axes: tuple[str, ...]
    gradient: str = ""

    @property
    def slug(self) -> str:
        """A name that no other place has."""
        step = self.step.replace("_", "-")
        return f"{step}-{self.gradient}" if self.gradient else step

    def get(self, state: State, result: Any) -> Any:
        """The array in the step's result; None if it has none."""
        return result.get(self.gradient) if isinstance(result, dict) else result

    def put(self, state: State, result: Any, array: NDArray) -> Any:
        """The step's result with another array."""
        return {**result, self.gradient: array} if isinstance(result, dict) else array


@dataclass(eq=False)
class Backward:
    """The model's backward steps at one problem, beside the gradients that the subject gives.

    Args:
        evidence: whose model and subject.
        problem: where.

    Raises:
        DoesNotApply: the model can't be run there.
    """

    evidence: Evidence
    problem: Problem
    state: State = field(init=False)
    steps: dict[str, Step] = field(init=False)
    measured: Gradients = field(init=False)
    _later: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    _zeros: dict[str, Gradients] = field(default_factory=dict, repr=False)
    _read: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        given = self.evidence.asker.rounded(self.problem)
        forward, self.steps = pipelines(*self.evidence.model)
        self.state = reference.run_state(
            given.config, given.weights, given.inputs, forward=forward, backward=self.steps, sizes=given.sizes
        )
        arrays = self.evidence.got_all(self.problem) or {}
        found = {name.removeprefix(GRADIENT): array for name, array in arrays.items() if is_gradient(name)}
        self.measured = {
            name: array
            for name, array in found.items()
            if name in self.expected and array.shape == self.expected[name].shape and np.isfinite(array).all()
        }

    @cached_property
    def expected(self) -> Gradients:
        """Name -> the model's gradient."""
        return collect_gradients(self.state)

    @cached_property
    def wrong(self) -> frozenset[str]:
        """The names of gradients that are not the model's."""
        return frozenset(name for name in self.measured if not self._is_measured(name, self.expected[name]))

    def _is_measured(self, name: str, array: NDArray) -> bool:
        """Whether an array is the gradient that the subject gave."""
        asker = self.evidence.asker
        allowed = asker.wanted(self.problem, gradients=True).allowed_error[GRADIENT + name]
        return asker.nearness.near(array, self.measured[name], allowed)

    def array(self, place: Place) -> Any:
        """The model's array."""
        return place.get(self.state, self.state[place.step])

    def with_array(self, place: Place, array: NDArray) -> Gradients:
        """The gradients with another array."""
        if place.gradient:
            return {**self.expected, place.gradient: array}
        result = place.put(self.state, self.state[place.step], array)
        found = replace(self.state, arrays={**self.state.arrays, place.step: result})
        with any_numbers:
            for name in self._after(place.step):
                found.arrays[name] = self.steps[name](found)
        return collect_gradients(found)

    def _after(self, step: str) -> tuple[str, ...]:
        """The later steps that depend on one that gives an array."""
        if step not in self._later:
            names = list(self.steps)
            found = replace(self.state, arrays={**self.state.arrays, step: np.zeros_like(self.state[step])})
            later = []
            with any_numbers:
                for name in names[names.index(step) + 1 :]:
                    found.arrays[name] = self.steps[name](found)
                    if not _same(found.arrays[name], self.state.arrays[name]):
                        later.append(name)
            self._later[step] = tuple(later)
        return self._later[step]

    def changed(self, gradients: Gradients) -> list[str]:
        """The names of the measured gradients that are not the model's in these, but for rounding."""
        found = []
        for name in self.measured:
            with any_numbers:
                change = np.where(gradients[name] == self.expected[name], 0.0, gradients[name] - self.expected[name])
            if self._is_large(change):
                found.append(name)
        return found

    def _is_large(self, change: NDArray) -> bool:
        """Whether a change of gradients is more than rounding."""
        return not bool((np.abs(change) <= NEGLIGIBLE * self._largest).all())

    def explained(self, gradients: Gradients) -> int:
        """How many of the wrong gradients these are."""
        return sum(self._is_measured(name, gradients[name]) for name in self.wrong)

    @cached_property
    def _largest(self) -> float:
        return max((float(np.abs(array).max(initial=0.0)) for array in self.measured.values()), default=0.0)

    # Solving ------------------------------------------------------------------------------------------

    def reached(self, place: Place) -> list[str]:
        """The names of the measured gradients that an array has part in."""
        return self.changed(self._zeroed(place))

    def read(self, place: Place) -> tuple[NDArray | None, bool]:
        """The array that the subject must have had, if the gradients tell it; whether there may be one."""
        if place.slug not in self._read:
            self._read[place.slug] = self._solved_array(place)
        return self._read[place.slug]

    def _solved_array(self, place: Place) -> tuple[NDArray | None, bool]:
        if place.gradient:
            return self.measured.get(place.gradient), place.gradient in self.wrong
        expected, reached = self.array(place), self.reached(place)
        if not self.wrong & {*reached}:
            return None, False
        if expected.size > LARGEST:
            return None, True
        units = list(np.eye(expected.size).reshape(-1, *expected.shape))
        found, possible = self._solved(place, self._columns(place, units), reached, enough=expected.size)
        return None if found is None else found.reshape(expected.shape), possible

    def mapped(self, place: Place, axis: int | None = None) -> NDArray | None:
        """The model's array times a number, or a linear map of one axis: each index a sum of all, times numbers."""
        array = self.array(place)
        if axis is None:
            numbers = self._combined(place, self._columns(place, [array]))
            return None if numbers is None else numbers[0] * array
        length = array.shape[axis]
        if length * length > LARGEST:
            return None
        units = np.eye(length * length).reshape(-1, length, length)
        numbers = self._combined(place, self._columns(place, [_along(unit, array, axis) for unit in units]))
        return None if numbers is None else _along(numbers.reshape(length, length), array, axis)

    def parts(self, place: Place, other: NDArray) -> tuple[float, float] | None:
        """(a, b) such that a times the place's array plus b times another one gives the gradients; None if none do."""
        columns = self._columns(place, [self.array(place), other])
        for name, column in columns.items():
            if name not in self.wrong and self._is_large(column[:, 1] - column[:, 0]):
                return None
        both = self._combined(place, columns, enough=2)
        if both is not None:
            return None if abs(both[1]) < NONE else (float(both[0]), float(both[1]))
        alone = self._combined(place, {name: column[:, 1:] for name, column in columns.items()})
        # What is a multiple of the array here says no more than a factor does, unless it gives the gradients as it is.
        return (0.0, 1.0) if alone is not None and abs(alone[0] - 1.0) < NONE else None

    def _combined(self, place: Place, columns: Gradients, enough: int = 1) -> NDArray | None:
        """The numbers with which columns give the gradients that they reach; None if there are none."""
        reached = [name for name, column in columns.items() if self._is_large(column)]
        return self._solved(place, columns, reached, enough)[0] if self.wrong & {*reached} else None

    def _solved(
        self, place: Place, columns: Gradients, reached: Sequence[str], enough: int
    ) -> tuple[NDArray | None, bool]:
        """The numbers that give the gradients that a place reaches, or all but those of one topic; whether any do.

        None if the gradients don't tell as many of them as are enough.
        """
        zeroed = self._zeroed(place)
        sizes = {name: float(np.abs(self.measured[name]).max(initial=0.0)) or 1.0 for name in reached}
        fits, told = False, False
        for names in _choices(reached, self.wrong):
            matrix = np.concatenate([columns[name] / sizes[name] for name in names])
            target = np.concatenate([(self.measured[name] - zeroed[name]).ravel() / sizes[name] for name in names])
            if not (np.isfinite(matrix).all() and np.isfinite(target).all()):
                continue
            scale = np.abs(matrix).max(axis=0)
            scale[scale == 0.0] = 1.0
            scaled, rank = least_squares(matrix / scale, target, rcond=CONDITION)
            found: NDArray = scaled / scale
            made = {name: (columns[name] @ found).reshape(zeroed[name].shape) + zeroed[name] for name in names}
            told |= rank >= enough
            if all(self._is_measured(name, array) for name, array in made.items()):
                if rank >= enough:
                    return found, True
                fits = True
        return None, fits and not told

    def _zeroed(self, place: Place) -> Gradients:
        """The gradients with zeros as a place's array."""
        if place.slug not in self._zeros:
            self._zeros[place.slug] = self.with_array(place, np.zeros_like(self.array(place)))
        return self._zeros[place.slug]

    def _columns(self, place: Place, basis: Sequence[NDArray]) -> Gradients:
        """Name -> the gradient's (size, arrays) matrix: what each array adds to the gradients with 0."""
        zeroed, own = self._zeroed(place), self.array(place)
        names = [place.gradient] if place.gradient else list(self.measured)
        made = {name: np.empty((zeroed[name].size, len(basis))) for name in names}
        for index, array in enumerate(basis):
            gradients = self.expected if array is own else self.with_array(place, array)
            with any_numbers:
                for name in names:
                    made[name][:, index] = (gradients[name] - zeroed[name]).ravel()
        return made


def _along(matrix: NDArray, array: NDArray, axis: int) -> NDArray:
    """A linear map of one axis."""
    return np.moveaxis(np.tensordot(matrix, array, (1, axis)), 0, axis)


def _choices(reached: Sequence[str], wrong: frozenset[str]) -> Iterator[list[str]]:
    """All gradients that a place reaches; then without those that another fault may have changed as well."""
    tried = []
    for topic in ((), *TOPICS):
        rest = [name for name in reached if not any(part in name for part in topic)]
        if rest not in tried and wrong & {*rest}:
            tried.append(rest)
            yield rest


def _same(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return all(np.array_equal(a[name], b[name]) for name in a)
    return a is b or np.array_equal(np.asarray(a), np.asarray(b))


def backwards(evidence: Evidence) -> list[Backward]:
    """The backward steps at each problem that differs and can be run."""
    found = []
    for problem in evidence.differing():
        try:
            one = Backward(evidence, problem)
        except DoesNotApply:
            continue
        if one.wrong:
            found.append(one)
    return found
