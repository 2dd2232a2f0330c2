"""Variants: the reference with some bugs in it, run problem after problem, as fast as steps that stay allow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

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
    """Run the replaced steps of a finished run, and every step after the first that gives another array.

    Args:
        state: a result of `reference.run_state`; it is not changed.
        pipeline: every step, forward or backward or both, with the replaced ones among them.
        replaced: their names.
        changed: whether an array that the pipeline starts from is new already.
        since: the State of which `state` is a rerun. Default: `state` is the finished run itself.
        reads: what steps read, as `noted_run` finds it: those that read nothing new are not run.

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
    """Return the State of `reference.run_state` with these steps; and step -> the names of the arrays that it read."""
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


T = TypeVar("T")

ROOM = 2**28
"""Bytes that intermediate arrays of runs without a bug may take, from which the others start."""

OFTEN, SMALL = 4, 2**20
"""Runs with bugs from which others start: after how many of their kind they are kept, and of how many bytes."""

OF_RUNS, OF_RESULTS, SHORT = 2**26, 2**26, 2**14
"""Bytes that such runs, and results, may take together; most bytes of a step's array by which a result is known."""


class Finished(NamedTuple):
    """A run: the State, its arrays by name, its pipeline, and what the definition's steps read in it."""

    state: State
    arrays: dict[str, NDArray]
    steps: Mapping[str, Step]
    reads: Reads


class _Latest(Generic[T]):
    """What was kept last, by key, of as many bytes as there is room for."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._kept: OrderedDict[Hashable, tuple[T, int, object]] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def get(self, key: Hashable) -> T | None:
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def keep(self, key: Hashable, value: T, size: int, owner: object = None) -> None:
        """Keep a value of so many bytes; and `owner` with it, whose id is part of the key."""
        self._kept[key] = value, size, owner
        self._room -= size
        while self._room < 0:
            self._room += self._kept.popitem(last=False)[1][1]


class Variants:
    """A runner of the reference with bugs in it.

    Steps that a bug does not change are not run again, as long as there is room for their results: see `rerun`.

    Attributes:
        runs: how many runs there were so far.
    """

    def __init__(self) -> None:
        self.runs = 0
        self._right: dict[tuple[Problem, bool], Finished | None] = {}
        self._room = ROOM
        self._shared: _Latest[Finished | None] = _Latest(OF_RUNS)
        self._often: dict[tuple[Bug, ...], int] = {}
        self._results: _Latest[dict[str, NDArray]] = _Latest(OF_RESULTS)

    def run(self, problem: Problem, bugs: tuple[Bug, ...], *, gradients: bool = False) -> dict[str, NDArray] | None:
        """Return every stage, and with `gradients` every gradient, by name.

        The result is None where the bugs can't be put in, and {} where they contradict each other. Where they change
        nothing, it is the same dict as without them.
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
            others, new = self._parted(bugs)
            before = self._shared_run(problem, others, right, gradients) if others else None
            return self._with(right, bugs, bugs) if before is None else self._with(before, bugs, new)
        except Contradiction:
            return {}  # not as where a bug can't be made: this is a case against them
        except DoesNotApply:
            return None

    def _with(self, start: Finished, bugs: tuple[Bug, ...], new: tuple[Bug, ...]) -> dict[str, NDArray]:
        """The arrays of the run with `bugs`, from one in which all of them are but `new`.

        Most candidates change one step, and many give the same array there: what follows from that is computed once.
        """
        names = _changed(new, start)
        steps = steps_with(bugs, names)
        key = None
        if len(names) == 1:
            (name,) = names
            with any_numbers:
                result = steps[name](start.state.copy())
            if same(result, start.state.arrays[name]):
                return start.arrays
            if isinstance(result, np.ndarray) and result.nbytes <= SHORT:
                key = id(start), name, result.shape, result.dtype, result.tobytes()
                if (known := self._results.get(key)) is not None:
                    return known
            steps = {name: lambda state: result}
        found = _continued(start, steps).arrays
        if key is not None:
            self._results.keep(key, found, result.nbytes + sum(map(_bytes, _new(found, start.arrays))), start)
        return found

    def _parted(self, bugs: tuple[Bug, ...]) -> tuple[tuple[Bug, ...], tuple[Bug, ...]]:
        """All bugs but one, and that one, such that others have been added to these the most; none if to none often."""
        if len(bugs) < 2:
            return (), bugs
        parted = [((*bugs[:k], *bugs[k + 1 :]), bugs[k : k + 1]) for k in reversed(range(len(bugs)))]
        for others, _ in parted:
            self._often[others] = self._often.get(others, 0) + 1
        found = max(parted, key=lambda one: self._often[one[0]])
        return found if self._often[found[0]] > OFTEN else ((), bugs)

    def _shared_run(self, problem: Problem, bugs: tuple[Bug, ...], right: Finished, gradients: bool) -> Finished | None:
        """The run with bugs to which many others are added one at a time; None if it can't be, or is large."""
        key = problem, gradients, bugs
        if key not in self._shared:
            try:
                found = _continued(right, steps_with(bugs, _changed(bugs, right)))
            except DoesNotApply:
                self._shared.keep(key, None, 0)  # what is added may come before it
                return None
            size = sum(map(_bytes, _new(found.state.arrays, right.state.arrays)))
            self._shared.keep(key, found if size <= SMALL else None, size if size <= SMALL else 0)
        return self._shared.get(key)

    def started(self, problem: Problem, bugs: tuple[Bug, ...]) -> Finished | None:
        """Return the run with bugs and without gradients; None where there is no room for the run that it starts from.

        Raises DoesNotApply where they can't be put in.
        """
        right = self._right_run(problem, False)
        return right and _continued(right, steps_with(bugs, _changed(bugs, right)))

    def kept(self, problem: Problem, *, gradients: bool = False) -> dict[str, NDArray] | None:
        """Return the arrays without a bug, if they have been computed and kept."""
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


def _changed(bugs: tuple[Bug, ...], start: Finished) -> set[str]:
    """The steps of a run's pipeline that bugs change."""
    return {name for bug in bugs for name in bug.steps if name in start.steps}


def _continued(start: Finished, changed: Mapping[str, Step]) -> Finished:
    """The run with some other steps; with the very arrays of `start` where they give what is there."""
    steps = {**start.steps, **changed}
    state, differs = rerun(start.state, steps, changed, reads=start.reads)
    return Finished(state, _arrays(state), steps, start.reads) if differs else start._replace(steps=steps)


def _new(arrays: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Any]:
    """The arrays that are others than before."""
    return (array for name, array in arrays.items() if array is not before.get(name))


def _bytes(array: Any) -> int:
    return array.nbytes if isinstance(array, np.ndarray) else 0


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
