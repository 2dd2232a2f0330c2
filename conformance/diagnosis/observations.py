"""Observations of a subject case by case, and the runs of hypotheses in these cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.judging.compare import Mismatch
from conformance.judging.expected import Expected
from conformance.zoo.bug import Bug, Contradiction, DoesNotApply, pipelines
from conformance.zoo.rerun import rerun
from mha_core import AttentionInputs
from mha_core.call.call import FLOATS
from mha_core.reference import pipeline as reference
from mha_core.reference.state import State
from mha_core.stages import is_gradient

ROOM = 2**28
"""Bytes that intermediate arrays of runs without a bug may take, from which the others start."""


@dataclass(frozen=True, eq=False)
class Observation:
    """One case with the right answer and the subject's answer."""

    case: Case
    wanted: Expected
    arrays: Mapping[str, NDArray]
    mismatches: tuple[Mismatch, ...]

    @cached_property
    def extremity(self) -> int:
        """0 for an ordinary case, 1 for one with empty rows, 2 where sizes are 0 or numbers NaN or infinite.

        Layers that agree in ordinary cases often differ in these.
        """
        inputs = self.wanted.problem.inputs
        given = [array for name, array in inputs.leaves().items() if name in FLOATS]
        if not self.wanted.where.size or not all(np.isfinite(array).all() for array in given):
            return 2
        return 0 if self.wanted.where.any(axis=-1).all() else 1


def _bytes_of(state: State) -> int:
    """What the arrays of a State take; some are views of others, or the same."""
    arrays = [array for array in state.arrays.values() if isinstance(array, np.ndarray)]
    owners = {id(owner): owner for owner in (array if array.base is None else array.base for array in arrays)}
    return sum(owner.nbytes for owner in owners.values())


class Runs:
    """Runs the reference with some bugs in it, case by case, and keeps the results.

    Steps that a bug does not change are not run again, as long as there is room for their results: see `rerun`.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, bool, tuple[str, ...]], dict[str, NDArray] | None] = {}
        self._right: dict[tuple[Problem, bool], tuple[State, dict[str, NDArray]] | None] = {}
        self._room = ROOM

    def arrays(self, observation: Observation, bugs: tuple[Bug, ...]) -> dict[str, NDArray] | None:
        """Every stage, and every gradient if the subject shows some; None where the bugs can't be put in.

        Nothing ({}) where they contradict each other. Only the results of single bugs are kept: there are too many
        sets of several.
        """
        with_gradients = any(map(is_gradient, observation.arrays))
        if len(bugs) > 1:
            alone = [self.arrays(observation, (bug,)) for bug in bugs]
            # Bugs that leave a case as it is one by one do so together.
            right = self._right.get((observation.wanted.problem, with_gradients))
            if right is not None and all(arrays is right[1] for arrays in alone):
                return right[1]
        if len(bugs) > 1 or observation.case.expensive:
            return self._run(observation.wanted.problem, bugs, with_gradients)
        key = observation.case.id, with_gradients, tuple(bug.id for bug in bugs)
        if key not in self._arrays:
            self._arrays[key] = self._run(observation.wanted.problem, bugs, with_gradients)
        return self._arrays[key]

    def _run(self, problem: Problem, bugs: tuple[Bug, ...], with_gradients: bool) -> dict[str, NDArray] | None:
        inputs = problem.inputs if with_gradients else replace(problem.inputs, cotangent=None)
        forward, backward = pipelines(*bugs)
        right = self._right_run(problem, inputs)
        try:
            if right is None:
                state = reference.run_state(problem.config, problem.weights, inputs, forward=forward, backward=backward)
                return reference.trace_of(state).arrays()
            replaced = {name for bug in bugs for name in bug.steps}
            state, changed = rerun(right[0], forward, replaced)
            if inputs.cotangent is not None:
                state, changed = rerun(state, backward, replaced, changed=changed)
        except Contradiction:
            return {}  # not as where a bug can't be made: this is a case against them
        except DoesNotApply:
            return None
        return reference.trace_of(state).arrays() if changed else right[1]

    def _right_run(self, problem: Problem, inputs: AttentionInputs) -> tuple[State, dict[str, NDArray]] | None:
        """The State of the reference without a bug, and its arrays; None where there is no room for it."""
        key = problem, inputs.cotangent is not None
        if key not in self._right:
            state = reference.run_state(problem.config, problem.weights, inputs)
            size = _bytes_of(state)
            fits = size <= self._room
            self._room -= size if fits else 0
            self._right[key] = (state, reference.trace_of(state).arrays()) if fits else None
        return self._right[key]
