"""Which other points the same change would do the same at: found by running, on random problems.

A factor on the queries is one on the scores; keys in another order are scores in another order. From the outputs of
layers whose score is a product nobody can tell them apart, so the stage of each counts as right; the additive score, by
which one could, is only among the problems where the fault needs it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from conformance.cases.problem import Problem
from conformance.trials.changes import Change
from conformance.trials.faults import Dice, Fault
from conformance.trials.layer import View
from conformance.trials.points import POINTS
from conformance.trials.problems import draw_problem
from conformance.trials.subject import hooks_of, run_view
from mha_core import AttentionConfig

CANDIDATES = (
    *("q", "k", "v", "raw", "scaled", "capped", "scores", "total", "weights", "kept", "heads", "merged", "output"),
    *("bias", "factor", "o_w", "hidden", "vector"),
)
"""Points at which the same is tried."""

PROBLEMS = 24
"""In so many problems outputs have to be equal."""

AGREE = 1e-9
"""Relative difference up to which they are."""


def further_stages(fault: Fault, config: AttentionConfig | None = None) -> frozenset[str]:
    """Stages of other points at which the same change, or what undoes it, gives the same outputs in all problems.

    Args:
        fault: what is wrong.
        config: the only one that the layer takes, if there is one.
    """
    if len(fault.changes) != 1 or fault.is_backward:
        return frozenset()
    point, change = fault.changes[0]
    found: set[str] = set()
    problems = _problems(fault.needs, config)
    outputs = [_output(fault, problem) for problem in problems]
    for other in CANDIDATES:
        if POINTS[other].stage in fault.stages | found or other == point:
            continue
        if any(_agrees(Fault("", ((other, same),)), problems, outputs) for same in change.counterparts()):
            found.add(POINTS[other].stage)
    return frozenset(found)


def _agrees(fault: Fault, problems: tuple[Problem, ...], outputs: list[np.ndarray]) -> bool:
    for problem, wanted in zip(problems, outputs, strict=True):
        try:
            found = _output(fault, problem)
        except (ValueError, IndexError):  # it can't be done there
            return False
        size = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
        if not np.allclose(found, wanted, rtol=0.0, atol=AGREE * (size or 1.0), equal_nan=True):
            return False
    return True


def _output(fault: Fault, problem: Problem) -> np.ndarray:
    output = run_view(View(problem.config, problem.weights, problem.inputs, hooks_of((fault,)))).output
    assert output is not None
    return output


@lru_cache(maxsize=256)
def _problems(needs: tuple[str, ...], config: AttentionConfig | None) -> tuple[Problem, ...]:
    needs = needs if "additive" in needs else ("not additive", *needs)
    dice = Dice("equivalent", *needs)
    return tuple(draw_problem(dice, needs, config) for _ in range(PROBLEMS))


def same_at(point: str, change: Change) -> frozenset[str]:
    """All stages of a change, for tests and curiosity.

    >>> from conformance.trials.changes import Factor
    >>> sorted(same_at("q", Factor("0.9", lambda view: 0.9)))
    ['keys', 'queries', 'scores']
    """
    fault = Fault("", ((point, change),))
    return fault.stages | further_stages(fault)
