"""Bug: one way of getting attention wrong, as a few steps of the reference pipeline replaced; and a bug as a subject.

The registry is in `registry.py`, the bugs themselves are by topic in `forward/`, `backward/` and `blocked/`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.bounds.precision import Precision
from conformance.subjects.ask import CannotExpress
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.backend import Run
from mha_core.dtypes import round_to
from mha_core.reference import pipeline as reference
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State, Step
from mha_core.weights import Weights

GRADIENTS = "gradients"
"""The value of `Bug.stage` for a bug that changes gradients only."""


class DoesNotApply(CannotExpress, ValueError):
    """An error: the bug can't be made in a problem of these sizes, such as a transposed matrix that is not square."""


class Contradiction(DoesNotApply):
    """An error: two bugs would change one number in different ways, so no layer has both."""


@dataclass(frozen=True, eq=False)
class Bug:
    """One bug.

    Args:
        id: its name, in kebab-case.
        sentence: what is wrong.
        stage: the name of the first stage that it changes; "gradients" if it changes none.
        fix: what to change.
        forward, backward: name of a step of `forward.FORWARD` or `backward.BACKWARD` -> the wrong step in
            its place. It raises DoesNotApply where sizes make the bug impossible.
        seen_in: public code or reports in which it occurred; "" for none.
        equivalent: why its results equal the definition's. "": they differ, and the suite must find it.

    >>> from mha_core import reference
    >>> bug = Bug("heads-doubled", "Every head counts twice.", "heads", "Add each head once.",
    ...           forward={"heads": lambda state: 2 * forward.heads(state)})
    >>> sorted(bug.steps)
    ['heads']
    """

    id: str
    sentence: str
    stage: str
    fix: str
    forward: Mapping[str, Step] = field(default_factory=dict)
    backward: Mapping[str, Step] = field(default_factory=dict)
    seen_in: str = ""
    equivalent: str = ""

    @property
    def steps(self) -> frozenset[str]:
        """Return the names of the steps that the bug replaces."""
        return frozenset(self.forward) | frozenset(self.backward)

    def run_state(self, config: AttentionConfig, weights: Weights, inputs: AttentionInputs) -> State:
        """Return `reference.run_state` with this bug's steps. Raises DoesNotApply where the bug can't be made."""
        forward, backward = pipelines(self)
        return reference.run_state(config, weights, inputs, forward=forward, backward=backward)


@dataclass(frozen=True, eq=False)
class OnTop:
    """A step that wraps another step; if several bugs wrap one step, they are applied in the bugs' order.

    Args:
        beneath: the wrapped step: the definition's, or another bug's.
        change: (state, beneath) -> the result. It may change the result of `beneath(state)`, or the state that it gets.
    """

    beneath: Step
    change: Callable[[State, Step], Any]

    def __call__(self, state: State) -> Any:
        return self.change(state, self.beneath)


def compatible(a: Bug, b: Bug) -> bool:
    """Return whether two bugs replace no step in common, so that they can't contradict each other."""
    return not any(_replaces(a, name) and _replaces(b, name) for name in a.steps & b.steps)


def _replaces(bug: Bug, name: str) -> bool:
    return not all(isinstance(steps[name], OnTop) for steps in (bug.forward, bug.backward) if name in steps)


def pipelines(*bugs: Bug) -> tuple[dict[str, Step], dict[str, Step]]:
    """Return the forward and the backward pipeline with the steps of all `bugs`.

    If several bugs replace one step, each changes its own numbers. The step raises Contradiction if two of them would
    change one number in different ways. Bugs that wrap a step (`OnTop`) act after the others.
    """
    found = steps_with(bugs, {name for bug in bugs for name in bug.steps})
    forward, backward = ({**own, **{name: found[name] for name in found.keys() & own}} for own in (FORWARD, BACKWARD))
    return forward, backward


def steps_with(bugs: Sequence[Bug], names: Iterable[str]) -> dict[str, Step]:
    """Return the steps of these names from the `pipelines` of `bugs`."""
    found = {}
    for name in names:
        right, there = (BACKWARD, "backward") if name in BACKWARD else (FORWARD, "forward")
        replaced = [steps[name] for bug in bugs if name in (steps := getattr(bug, there))]
        found[name] = _one_step(right[name], replaced)
    return found


def _one_step(right: Step, replaced: Sequence[Step]) -> Step:
    """One step with what several bugs make of it."""
    others = [_where_parameters_are(step) for step in replaced if not isinstance(step, OnTop)]
    found = right if not others else others[0] if len(others) == 1 else _composed(right, others)
    for step in replaced:
        if isinstance(step, OnTop):
            found = _where_parameters_are(OnTop(found, step.change))
    return found


def _composed(right: Step, others: Sequence[Step]) -> Step:
    """The step that changes what any of `others` changes in what `right` gives."""

    def step(state: State) -> Any:
        before = right(state)
        return reduce(lambda found, other: _merged(before, found, other(state)), others, before)

    return step


def _merged(before: Any, a: Any, b: Any) -> Any:
    """`before` with what is changed in `a` and with what is changed in `b`; each is an array, or several by name."""
    if a is before or b is before:
        return b if a is before else a
    if all(isinstance(one, Mapping) and one.keys() == before.keys() for one in (before, a, b)):
        return {name: _merged(before[name], a[name], b[name]) for name in before}
    if all(isinstance(one, tuple) for one in (before, a, b)):  # rotary_tables
        return type(before)(*map(_merged, before, a, b))
    if not all(isinstance(one, np.ndarray) and one.shape == before.shape for one in (before, a, b)):
        raise Contradiction("two bugs give one step results of different shapes")
    in_a, in_b = _differ(a, before), _differ(b, before)
    if (in_a & in_b & _differ(a, b)).any():
        raise Contradiction("two bugs change the same number in one step")
    return np.where(in_a, a, b)


def _differ(a: NDArray, b: NDArray) -> NDArray:
    """Where two arrays differ by more than the order of operations explains; a NaN equals a NaN."""
    return ~np.isclose(a, b, rtol=1e-9, atol=1e-300, equal_nan=True)


def _where_parameters_are(step: Step) -> Step:
    """`step`, changed to raise DoesNotApply in a layer without a parameter that it reads."""

    def guarded(state: State) -> Any:
        try:
            return step(state)
        except KeyError as error:
            if error.args[0] in state.parameters or not str(error.args[0]).endswith((".weight", ".bias", ".vector")):
                raise
            raise DoesNotApply(f"this layer has no {error.args[0]}") from error

    return guarded


class BuggySubject:
    """A subject: the reference with bugs. Without any it is the reference.

    Steps run in float64; every array of the Trace is rounded to `dtype` at the end, as if it had
    been computed in that dtype. Its run raises DoesNotApply where a bug can't be made.
    """

    device = "cpu"

    def __init__(self, *bugs: Bug, dtype: str = "float64") -> None:
        self.bugs = bugs
        self.dtype = dtype
        self.precision = Precision.of(dtype)
        self.name = "+".join(bug.id for bug in bugs) or "reference"
        self._forward, self._backward = pipelines(*bugs)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        def run(inputs: AttentionInputs) -> Trace:
            trace = reference.run(config, weights, inputs, forward=self._forward, backward=self._backward)
            return rounded(trace, self.dtype)

        return run


def rounded(trace: Trace, dtype: str) -> Trace:
    """Return every array of the trace rounded to `dtype`."""
    if dtype == "float64":
        return trace
    return Trace.of_arrays({name: rounded_array(array, dtype) for name, array in trace.arrays().items()})


def rounded_array(array: NDArray, dtype: str) -> NDArray:
    """Return an array of a run rounded to `dtype`; for float64 unchanged, even if a bug made it narrower."""
    if dtype == "float64":
        return array
    with any_numbers:
        return round_to(array, dtype)
