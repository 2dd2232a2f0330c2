"""Variants: the reference with some bugs in it, run problem after problem, as fast as steps that stay allow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.zoo.bug import Bug, Contradiction, DoesNotApply, pipelines
from conformance.zoo.rerun import rerun
from mha_core import AttentionInputs
from mha_core.reference import pipeline as reference
from mha_core.reference.state import State

ROOM = 2**28
"""Bytes that intermediate arrays of runs without a bug may take, from which the others start."""


class Variants:
    """Runs the reference with some bugs in it.

    Steps that a bug does not change are not run again, as long as there is room for their results: see `rerun`.
    """

    def __init__(self) -> None:
        self._right: dict[tuple[Problem, bool], tuple[State, dict[str, NDArray]] | None] = {}
        self._room = ROOM

    def run(self, problem: Problem, bugs: tuple[Bug, ...], *, gradients: bool = False) -> dict[str, NDArray] | None:
        """Every stage, and with `gradients` every gradient, by name.

        None where the bugs can't be put in, and nothing ({}) where they contradict each other. Where they change
        nothing it is the same dict as without them.
        """
        forward, backward = pipelines(*bugs)
        gradients = gradients and problem.inputs.cotangent is not None
        right = self._right_run(problem, gradients)
        try:
            if right is None:
                inputs = _inputs(problem, gradients)
                state = reference.run_state(problem.config, problem.weights, inputs, forward=forward, backward=backward)
                return reference.trace_of(state).arrays()
            replaced = {name for bug in bugs for name in bug.steps}
            state, changed = rerun(right[0], forward, replaced)
            if gradients:
                state, changed = rerun(state, backward, replaced, changed=changed)
        except Contradiction:
            return {}  # not as where a bug can't be made: this is a case against them
        except DoesNotApply:
            return None
        return reference.trace_of(state).arrays() if changed else right[1]

    def kept(self, problem: Problem, *, gradients: bool = False) -> dict[str, NDArray] | None:
        """The arrays without a bug, if they have been computed and kept."""
        right = self._right.get((problem, gradients))
        return None if right is None else right[1]

    def _right_run(self, problem: Problem, gradients: bool) -> tuple[State, dict[str, NDArray]] | None:
        """The State of the reference without a bug, and its arrays; None where there is no room for it."""
        key = problem, gradients
        if key not in self._right:
            state = reference.run_state(problem.config, problem.weights, _inputs(problem, gradients))
            size = _bytes_of(state)
            fits = size <= self._room
            self._room -= size if fits else 0
            self._right[key] = (state, reference.trace_of(state).arrays()) if fits else None
        return self._right[key]


def _inputs(problem: Problem, gradients: bool) -> AttentionInputs:
    return problem.inputs if gradients else replace(problem.inputs, cotangent=None)


def _bytes_of(state: State) -> int:
    """What the arrays of a State take; some are views of others, or the same."""
    arrays = [array for array in state.arrays.values() if isinstance(array, np.ndarray)]
    owners = {id(owner): owner for owner in (array if array.base is None else array.base for array in arrays)}
    return sum(owner.nbytes for owner in owners.values())
