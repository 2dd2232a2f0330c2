r"""The array of every backward step, read off the gradients by least squares.

All gradients are linear in the array x of one step, if the steps after it are right: g = g_0 + A x, where the columns
of A are the model's gradients for unit arrays. So

    x = A^+ (g - g_0)

is the array that the subject must have had there; a residual says that the fault is not at that step or before it.
Where A has not full rank, as for scores, x is not known; what was done there is then looked for by its effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.read.linear import least_squares
from conformance.measure.evidence import Evidence
from conformance.zoo.bug import DoesNotApply, pipelines
from conformance.zoo.variants import Variants
from mha_core.reference import pipeline as reference
from mha_core.reference.backward import collect_gradients
from mha_core.reference.state import State, Step
from mha_core.stages import GRADIENT, is_gradient

Arrays = Mapping[str, NDArray]

LARGEST = 200
"""Most elements of an array that is read off."""

NEGLIGIBLE = 1e-11
"""A change of less than this part of the largest gradient is none."""

CONDITION = 1e-7
"""Singular values below this part of the largest one count as 0."""

DICTS = ("d_score_parameters", "d_projection_parameters", "d_inputs")
"""Steps that give gradients by name."""


@dataclass(frozen=True)
class Inner:
    """An array inside a step, such as the softmax's sum over a row, on which the step's result depends as c + L(array).

    Args:
        step: the step.
        name: of the array, in kebab-case.
        array: State -> the array as it should be. It may raise DoesNotApply.
        result: (State, array) -> the step's result with another one.
    """

    step: str
    name: str
    array: Callable[[State], NDArray]
    result: Callable[[State, NDArray], NDArray]


@dataclass(eq=False)
class Backward:
    """The model's backward steps at one problem, beside the gradients that the subject gives.

    Args:
        evidence: whose model and subject.
        problem: where.
    """

    evidence: Evidence
    problem: Problem
    state: State = field(init=False)
    steps: dict[str, Step] = field(init=False)
    measured: dict[str, NDArray] = field(init=False)

    def __post_init__(self) -> None:
        given = self.evidence.asker.rounded(self.problem)
        forward, self.steps = pipelines(*self.evidence.model)
        self.state = reference.run_state(
            given.config, given.weights, given.inputs, forward=forward, backward=self.steps
        )
        arrays = self.evidence.got_all(self.problem) or {}
        found = {name.removeprefix(GRADIENT): array for name, array in arrays.items() if is_gradient(name)}
        self.measured = {
            name: array
            for name, array in found.items()
            if name in self.expected and array.shape == self.expected[name].shape and np.isfinite(array).all()
        }

    @cached_property
    def expected(self) -> dict[str, NDArray]:
        """Name -> the model's gradient."""
        return collect_gradients(self.state)

    @cached_property
    def wrong(self) -> frozenset[str]:
        """The names of gradients that are not the model's."""
        return frozenset(name for name in self.measured if not self.is_measured(name, self.expected[name]))

    def is_measured(self, name: str, array: NDArray) -> bool:
        """Whether an array is the gradient that the subject gave."""
        asker = self.evidence.asker
        allowed = asker.wanted(self.problem, gradients=True).allowed_error[GRADIENT + name]
        return asker.nearness.near(array, self.measured[name], allowed)

    @property
    def array_steps(self) -> Iterator[str]:
        """The steps that give one array, from the output backwards."""
        return (name for name in self.steps if isinstance(self.state.arrays[name], np.ndarray))

    def with_array(self, step: str, array: object) -> dict[str, NDArray]:
        """The gradients with another result of one step."""
        return self._rerun(step, array, self._after(step))

    def zeroed(self, step: str) -> dict[str, NDArray]:
        """The gradients with zeros as the result of a step."""
        self._after(step)
        return self._zeroed[step]

    def reached(self, step: str) -> list[str]:
        """The names of measured gradients that a step's array has part in."""
        zeroed = self.zeroed(step)
        return [name for name in self.measured if self.differs(name, zeroed[name])]

    def differs(self, name: str, array: NDArray) -> bool:
        """Whether an array is not the model's gradient, but for rounding."""
        expected = self.expected[name]
        with any_numbers:
            near = np.abs(array - expected) <= NEGLIGIBLE * self._largest
        return not bool((near | (array == expected)).all())

    @cached_property
    def _largest(self) -> float:
        return max((float(np.abs(array).max(initial=0.0)) for array in self.measured.values()), default=0.0)

    _zeroed: dict[str, dict[str, NDArray]] = field(default_factory=dict, repr=False)
    _later: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def _after(self, step: str) -> tuple[str, ...]:
        """The later steps that depend on one."""
        if step not in self._later:
            names = list(self.steps)
            found = replace(self.state, arrays=dict(self.state.arrays))
            found.arrays[step] = np.zeros_like(self.state[step])
            later = []
            with any_numbers:
                for name in names[names.index(step) + 1 :]:
                    found.arrays[name] = self.steps[name](found)
                    if not _same(found.arrays[name], self.state.arrays[name]):
                        later.append(name)
            self._later[step], self._zeroed[step] = tuple(later), collect_gradients(found)
        return self._later[step]

    def _rerun(self, step: str, array: object, later: Sequence[str]) -> dict[str, NDArray]:
        found = replace(self.state, arrays={**self.state.arrays, step: array})
        with any_numbers:
            for name in later:
                found.arrays[name] = self.steps[name](found)
        return collect_gradients(found)

    def read(self, step: str, inner: Inner | None = None) -> NDArray | None:
        """The array that the subject must have had at a step, or inside it; None if it is not known.

        Raises:
            Refuted: no array there gives what the subject gives, in gradients that differ.
            DoesNotApply: there is none inside the step.
        """
        expected = self.state[step] if inner is None else inner.array(self.state)
        reached = self.reached(step)
        wrong = [name for name in reached if name in self.wrong]
        if not wrong or expected.size > LARGEST:
            return None
        columns = self._columns(step, reached, inner)
        zeroed = self._without(step, inner)
        for names in _choices(reached, wrong):
            matrix = np.concatenate([columns[name] / self._size(name) for name in names])
            target = np.concatenate([(self.measured[n] - zeroed[n]).ravel() / self._size(n) for n in names])
            found, rank = least_squares(matrix, target, rcond=CONDITION)
            if rank < expected.size and names is reached:
                return None
            made = {n: (columns[n] @ found).reshape(zeroed[n].shape) + zeroed[n] for n in names}
            if rank == expected.size and all(self.is_measured(n, array) for n, array in made.items()):
                read: NDArray = found.reshape(expected.shape)
                return read
        raise Refuted

    def _size(self, name: str) -> float:
        return float(np.abs(self.measured[name]).max(initial=0.0)) or 1.0

    def _without(self, step: str, inner: Inner | None) -> dict[str, NDArray]:
        """The gradients with zeros as the array that is read."""
        if inner is None:
            return self.zeroed(step)
        return self.with_array(step, inner.result(self.state, np.zeros_like(inner.array(self.state))))

    def _columns(self, step: str, names: Sequence[str], inner: Inner | None) -> dict[str, NDArray]:
        """Name -> the gradient's (size, elements of the step) matrix."""
        later = self._after(step)
        bugs = [bug for bug in self.evidence.model if bug.forward or any(name in bug.backward for name in later)]
        known = _COLUMNS.setdefault(self.evidence.variants, {})
        key = self.problem, step if inner is None else f"{step}/{inner.name}", frozenset(bug.id for bug in bugs)
        if key not in known:
            known[key] = self._made_columns(step, later, inner)
        return {name: known[key][name] for name in names}

    def _made_columns(self, step: str, later: Sequence[str], inner: Inner | None) -> dict[str, NDArray]:
        shape = (self.state[step] if inner is None else inner.array(self.state)).shape
        size = int(np.prod(shape))
        zeroed = self._without(step, inner)
        made = {name: np.empty((zeroed[name].size, size)) for name in self.measured}
        for index in range(size):
            unit = np.zeros(size)
            unit[index] = 1.0
            array = unit.reshape(shape)
            gradients = self._rerun(step, array if inner is None else inner.result(self.state, array), later)
            for name in made:
                made[name][:, index] = (gradients[name] - zeroed[name]).ravel()
        return made


_COLUMNS: WeakKeyDictionary[Variants, dict[tuple[Problem, str, frozenset[str]], dict[str, NDArray]]]
_COLUMNS = WeakKeyDictionary()


class Refuted(Exception):
    """The fault is not at a step, nor before it."""


def _choices(reached: list[str], wrong: list[str]) -> Iterator[list[str]]:
    """All gradients that a step reaches; then without those that another fault may have changed as well."""
    yield reached
    tried = [reached]
    for topic in (
        ("values", "v_proj"),
        ("queries", "q_proj"),
        ("keys", "k_proj"),
        (".weight",),
        (".bias",),
        ("score.",),
    ):
        rest = [name for name in reached if not any(part in name for part in topic)]
        if rest not in tried and set(rest) & set(wrong):
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
