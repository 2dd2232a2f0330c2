"""Variants: runs of the reference with bugs in it; steps that the bugs do not affect are not run again."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.zoo.bug import Bug, Contradiction, DoesNotApply, pipelines, steps_with
from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.arguments import CallSizes
from mha_core.reference import pipeline as reference
from mha_core.reference.backward import BACKWARD, collect_gradients
from mha_core.reference.forward import FORWARD
from mha_core.reference.pipeline import run_state
from mha_core.reference.state import State, Step
from mha_core.stages import GRADIENT, STAGES
from mha_core.weights import Weights

Reads = dict[Step, frozenset[str]]
"""Step of the definition -> the steps whose arrays it reads in one problem."""

_DEFINITION = frozenset((*FORWARD.values(), *BACKWARD.values()))


def rerun(
    state: State,
    pipeline: Mapping[str, Step],
    replaced: Collection[str],
    *,
    changed: bool = False,
    since: State | None = None,
    reads: Reads,
) -> tuple[State, bool]:
    """Repeat a finished run: call only the replaced steps, and later steps that read a changed array.

    Args:
        state: the finished run: a result of `reference.run_state`, or of an earlier `rerun`. It is not changed.
        pipeline: every step, forward or backward or both, with the replaced ones among them.
        replaced: the names of the steps that differ from those of the finished run.
        changed: whether `state` is the result of an earlier `rerun` that changed an array.
        since: the State from which the earlier `rerun` started. Default: `state`, if there was no earlier `rerun`.
        reads: step -> names of the arrays that the step reads, as `noted_run` finds them.

    Returns:
        (the new State, or the given one if no step is run; whether anything in it is new).
    """
    if not changed and pipeline.keys().isdisjoint(replaced):
        return state, False
    found = state.copy()
    arrays, before = found.arrays, (since or state).arrays
    new = set() if since is None else {name for name in before if arrays[name] is not before[name]}
    with any_numbers:
        for name, step in pipeline.items():
            if name in replaced:
                arrays[name] = step(found)
                changed = changed or not same(arrays[name], state.arrays[name])
            elif changed and not (step in reads and new.isdisjoint(reads[step])):
                arrays[name] = step(found)
                if name == "padding" and np.array_equal(arrays[name], before[name]):
                    arrays[name] = before[name]  # most masks leave it as it is, and many steps read it
            else:
                continue
            if arrays[name] is not before[name]:
                new.add(name)
    return found, changed


def noted_run(
    config: AttentionConfig,
    weights: Weights,
    inputs: AttentionInputs,
    *,
    forward: Mapping[str, Step] = FORWARD,
    sizes: CallSizes | None = None,
) -> tuple[State, Reads]:
    """Return the State of a reference run with the steps `forward`, and a dict: step -> names of the arrays it read."""
    state = run_state(config, weights, inputs, forward={}, backward={}, sizes=sizes)
    watched, reads = _Watched(state), Reads()
    with any_numbers:
        for name, step in {**forward, **({} if inputs.cotangent is None else BACKWARD)}.items():
            if step in _DEFINITION:
                watched.read = set()
                state.arrays[name] = step(watched)
                reads[step] = frozenset(watched.read)
            else:
                state.arrays[name] = step(state)
    return state, reads


class _Watched(State):
    """A State that knows which of its arrays were read."""

    def __init__(self, state: State) -> None:
        vars(self).update(vars(state))
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self.arrays[name]


def same(a: object, b: object) -> bool:
    """Return whether two results of a step are equal; a NaN equals a NaN."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if a is None or b is None:
        return a is b
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    differ = a != b
    if not differ.any():
        return True
    first = differ.argmax()  # mostly a number, which tells
    return bool(a.flat[first] != a.flat[first]) and np.array_equal(a, b, equal_nan=True)


ROOM = 2**28
"""Bytes that intermediate arrays of runs without a bug may take, from which the others start."""


class Finished(NamedTuple):
    """A finished run: its State, its arrays and steps by name, and the names of the arrays that each step read."""

    state: State
    arrays: dict[str, NDArray]
    steps: Mapping[str, Step]
    reads: Reads


class Variants:
    """A runner of the reference with bugs in it.

    Steps that a bug does not affect are not run again, as long as their results fit in the cache: see `rerun`.

    Attributes:
        runs: how many runs there were so far.
    """

    def __init__(self) -> None:
        self.runs = 0
        self._right: dict[tuple[Problem, bool], Finished | None] = {}
        self._room = ROOM

    def run(self, problem: Problem, bugs: tuple[Bug, ...], *, gradients: bool = False) -> dict[str, NDArray] | None:
        """Run the reference with these bugs; return every stage, and with `gradients` every gradient, by name.

        Return None if the bugs can't be made in this problem, and {} if two of them contradict each other. If the bugs
        change nothing, return the same dict object as for `bugs=()`.
        """
        self.runs += 1
        gradients = gradients and problem.inputs.cotangent is not None
        right = self._right_run(problem, gradients)
        try:
            if right is None:
                forward, backward = pipelines(*bugs)
                inputs = _inputs(problem, gradients)
                state = reference.run_state(
                    problem.config,
                    problem.weights,
                    inputs,
                    forward=forward,
                    backward=backward,
                    sizes=problem.sizes,
                )
                return _arrays(state)
            return _with(right, bugs).arrays
        except Contradiction:
            return {}  # not as where a bug can't be made: this is a case against them
        except DoesNotApply:
            return None

    def started(self, problem: Problem, bugs: tuple[Bug, ...]) -> Finished | None:
        """Return the forward run of the reference with these bugs. It starts from the cached run without bugs.

        Return None if the run without bugs is too large for the cache. Raises DoesNotApply if the bugs can't be made.
        """
        right = self._right_run(problem, False)
        return right and _with(right, bugs)

    def kept(self, problem: Problem, *, gradients: bool = False) -> dict[str, NDArray] | None:
        """Return name -> array of the run without bugs; None if that run is not in the cache."""
        right = self._right.get((problem, gradients))
        return None if right is None else right.arrays

    def _right_run(self, problem: Problem, gradients: bool) -> Finished | None:
        """The State of the reference without a bug, and its arrays; None where there is no room for it."""
        key = problem, gradients
        if key not in self._right:
            state, reads = noted_run(problem.config, problem.weights, _inputs(problem, gradients), sizes=problem.sizes)
            size = _bytes_of(state)
            fits = size <= self._room
            self._room -= size if fits else 0
            steps = {**FORWARD, **BACKWARD} if gradients else FORWARD
            self._right[key] = Finished(state, _arrays(state), steps, reads) if fits else None
        return self._right[key]


def _with(start: Finished, bugs: tuple[Bug, ...]) -> Finished:
    """The run with bugs, from the one without; with the very arrays of `start` where they give what is there."""
    changed = steps_with(bugs, {name for bug in bugs for name in bug.steps if name in start.steps})
    steps = {**start.steps, **changed}
    state, differs = rerun(start.state, steps, changed, reads=start.reads)
    return Finished(state, _arrays(state), steps, start.reads) if differs else start._replace(steps=steps)


def _inputs(problem: Problem, gradients: bool) -> AttentionInputs:
    return problem.inputs if gradients else replace(problem.inputs, cotangent=None)


def _arrays(state: State) -> dict[str, NDArray]:
    """Every stage, and every gradient if the backward pipeline ran, by name."""
    arrays = {name: state.arrays[name] for name in STAGES}
    if state.inputs.cotangent is not None:
        arrays |= {f"{GRADIENT}{name}": array for name, array in collect_gradients(state).items()}
    return arrays


def _bytes_of(state: State) -> int:
    """What the arrays of a State take; some are views of others, or the same."""
    arrays = [array for array in state.arrays.values() if isinstance(array, np.ndarray)]
    owners = {id(owner): owner for owner in (array if array.base is None else array.base for array in arrays)}
    return sum(owner.nbytes for owner in owners.values())
