"""The cases of an exercise worked out: what its function gets, what it must give, and how far off it may be."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.bounds.tolerance import allowed_error_of_steps
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.judging.distance import distance as distance_of_numbers
from mha.learn.exercise import StepExercise
from mha_core.reference import pipeline as reference
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State, Step

PRECISION = Precision.of("float64")
PIPELINE = {**FORWARD, **BACKWARD}

MOST_OF_WEIGHT = 1e-3
"""Most that a weight may be off. The bound counts the rounding of scores, more than 1 where they are -1e300; but
a learner's softmax is given them."""


class _Errors(dict[str, Any]):
    """Step -> the error allowed in its result; 0 for what holds no numbers, and by name for gradients in a dict."""

    def __init__(self, state: State) -> None:
        super().__init__()
        for name, array in allowed_error_of_steps(state, PRECISION).items():
            step, _, gradient = name.partition(".")
            if gradient:
                self.setdefault(step, {})[gradient] = array
            else:
                self[name] = array
        self["weights"] = np.minimum(self["weights"], MOST_OF_WEIGHT)
        self._state = state

    def __missing__(self, name: str) -> NDArray:
        if name == "unscaled":  # the error of the scores, by the same products, before the scale
            return np.asarray(self["similarity"] / abs(self._state.config.softmax_scale))
        array = self._state[name]
        assert array.dtype == bool, f"no error is known of {name}"
        return np.zeros(array.shape)


@dataclass(frozen=True)
class Place:
    """A test case of an exercise, with its right answer.

    Attributes:
        case, problem: the case, and its call of attention.
        state: the results of all steps of the reference in this call.
        arguments: the arguments of the learner's function, in their order.
        wanted: the arrays that the function must return.
        allowed: the allowed error of each element of `wanted`.
    """

    case: Case
    problem: Problem
    state: State
    arguments: tuple[Any, ...]
    wanted: tuple[NDArray, ...]
    allowed: tuple[NDArray, ...]

    @property
    def size(self) -> int:
        """Return the total number of elements in the function's arguments and its right results."""
        given = [argument.size for argument in self.arguments if isinstance(argument, np.ndarray)]
        return sum(given) + sum(array.size for array in self.wanted)


@dataclass(frozen=True)
class Bench:
    """An exercise with its cases worked out, each once."""

    exercise: StepExercise

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Return the cases that judge an answer."""
        return tuple(self._place(case) for case in self.exercise.judged_by)

    @cached_property
    def tiny(self) -> tuple[Place, ...]:
        """Return the cases that are small enough to be followed by hand."""
        return tuple(self._place(case) for case in self.exercise.tiny)

    def _place(self, case: Case) -> Place:
        problem = case.build()
        inputs = problem.inputs if self.exercise.backward else replace(problem.inputs, cotangent=None)
        state = reference.run_state(problem.config, problem.weights, inputs)
        errors = _Errors(state)
        return Place(
            case,
            problem,
            state,
            tuple(_contiguous(argument.read(state)) for argument in self.exercise.arguments),
            tuple(np.asarray(one.read(state.arrays)) for one in self.exercise.returned),
            tuple(np.asarray(one.read(errors)) for one in self.exercise.returned),
        )

    def with_steps(self, place: Place, steps: Mapping[str, Step]) -> tuple[NDArray, ...]:
        """Return the exercise's results with some steps replaced. `steps`: step name -> function: State -> result."""
        state = replace(place.state, arrays=dict(place.state.arrays))
        with np.errstate(all="ignore"):
            for name in (name for name in PIPELINE if name in self.exercise.covers or name in steps):
                state.arrays[name] = steps.get(name, PIPELINE[name])(state)
        return tuple(np.asarray(one.read(state.arrays)) for one in self.exercise.returned)


def _contiguous(value: Any) -> Any:
    """An array as a learner expects it, with memory of its own."""
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value


@cache
def bench(exercise: StepExercise) -> Bench:
    """Return the Bench of an exercise, made once."""
    return Bench(exercise)


def distance(array: NDArray, wanted: NDArray) -> NDArray:
    """Return |array - wanted|, also of bool arrays. Two NaN or two equal infs give 0; a NaN or inf alone gives inf."""
    return distance_of_numbers(array.astype(np.float64), wanted.astype(np.float64))
