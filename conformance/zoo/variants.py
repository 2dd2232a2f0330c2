"""Variants: the reference with some bugs in it, run problem after problem, as fast as steps that stay allow."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.zoo.bug import Bug, Contradiction, DoesNotApply, pipelines
from conformance.zoo.rerun import Reads, noted_run, rerun
from mha_core import AttentionInputs
from mha_core.reference import pipeline as reference
from mha_core.reference.backward import collect_gradients
from mha_core.reference.state import State, Step
from mha_core.stages import GRADIENT, STAGES

ROOM = 2**28
"""Bytes that intermediate arrays of runs without a bug may take, from which the others start."""

SHARED, OFTEN, SMALL = 128, 4, 2**20
"""Runs with bugs from which others start: how many are kept, after how many of their kind, and of how many bytes."""


class Finished(NamedTuple):
    """A run: the State, its arrays by name, and what the definition's steps read in it."""

    state: State
    arrays: dict[str, NDArray]
    reads: Reads


class Variants:
    """Runs the reference with some bugs in it.

    Steps that a bug does not change are not run again, as long as there is room for their results: see `rerun`.

    Attributes:
        runs: how many so far.
    """

    def __init__(self) -> None:
        self.runs = 0
        self._right: dict[tuple[Problem, bool], Finished | None] = {}
        self._room = ROOM
        self._shared: OrderedDict[tuple[Problem, bool, tuple[Bug, ...]], Finished | None] = OrderedDict()
        self._often: dict[tuple[Bug, ...], int] = {}
        self._latest: tuple[tuple[Bug, ...], tuple[dict[str, Step], dict[str, Step]]] = ((), pipelines())

    def run(self, problem: Problem, bugs: tuple[Bug, ...], *, gradients: bool = False) -> dict[str, NDArray] | None:
        """Every stage, and with `gradients` every gradient, by name.

        None where the bugs can't be put in, and nothing ({}) where they contradict each other. Where they change
        nothing it is the same dict as without them.
        """
        self.runs += 1
        gradients = gradients and problem.inputs.cotangent is not None
        right = self._right_run(problem, gradients)
        try:
            if right is None:
                forward, backward = self._pipelines(bugs)
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
            before = self._shared_run(problem, bugs[:-1], gradients)
            if before is not None:
                return self._rerun(before, bugs, bugs[-1:], gradients).arrays
            return self._rerun(right, bugs, bugs, gradients).arrays
        except Contradiction:
            return {}  # not as where a bug can't be made: this is a case against them
        except DoesNotApply:
            return None

    def _rerun(self, start: Finished, bugs: tuple[Bug, ...], new: tuple[Bug, ...], gradients: bool) -> Finished:
        """The run with `bugs`, from one in which all of them are but `new`."""
        forward, backward = self._pipelines(bugs)
        steps = {**forward, **backward} if gradients else forward
        replaced = {name for bug in new for name in bug.steps}
        state, changed = rerun(start.state, steps, replaced, reads=start.reads)
        return Finished(state, _arrays(state), start.reads) if changed else start

    def _shared_run(self, problem: Problem, bugs: tuple[Bug, ...], gradients: bool) -> Finished | None:
        """The run with bugs to which many others were added one at a time; None if they were not, or it can't be."""
        if not bugs:
            return None
        seen = self._often[bugs] = self._often.get(bugs, 0) + 1
        if seen <= OFTEN:
            return None
        key = problem, gradients, bugs
        if key in self._shared:
            self._shared.move_to_end(key)
            return self._shared[key]
        right = self._right_run(problem, gradients)
        assert right is not None  # `run` has asked
        try:
            found: Finished | None = self._rerun(right, bugs, bugs, gradients)
        except DoesNotApply:
            found = None  # what is added may come before it
        if found is not None and found is not right and _bytes_of(found.state) > SMALL:
            found = None
        self._shared[key] = found
        if len(self._shared) > SHARED:
            self._shared.popitem(last=False)
        return found

    def _pipelines(self, bugs: tuple[Bug, ...]) -> tuple[dict[str, Step], dict[str, Step]]:
        """Those of `pipelines`; the same set is mostly run in several problems, one after the other."""
        if self._latest[0] is not bugs:
            self._latest = bugs, pipelines(*bugs)
        return self._latest[1]

    def right(self, problem: Problem) -> tuple[State, Reads] | None:
        """The run without a bug and without gradients, and what its steps read; None where there is no room for it."""
        found = self._right_run(problem, False)
        return None if found is None else (found.state, found.reads)

    def kept(self, problem: Problem, *, gradients: bool = False) -> dict[str, NDArray] | None:
        """The arrays without a bug, if they have been computed and kept."""
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
            self._right[key] = Finished(state, _arrays(state), reads) if fits else None
        return self._right[key]


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
