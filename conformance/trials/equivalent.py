"""Other points at which a change gives the same outputs. They are found by running random problems.

Queries times 0.9 and scores times 0.9 give equal outputs where the score is a product, so a diagnosis may name either
stage. With the additive score the outputs differ; such problems are used only for a fault that needs that score.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from conformance.cases.problem import Problem
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
"""The points at which the change is tried."""

PROBLEMS = 24
"""The number of problems in which the outputs must be equal."""

AGREE = 1e-9
"""The largest relative difference of equal outputs."""


def further_stages(fault: Fault, config: AttentionConfig | None = None) -> frozenset[str]:
    """Stages of other points at which the same change, or what undoes it, gives the same outputs in all problems.

    Args:
        fault: what is wrong.
        config: the only config that the layer takes. Default: it takes all.

    >>> from conformance.trials.changes import Factor
    >>> sorted(further_stages(Fault("factor", (("q", Factor("0.9", lambda view: 0.9)),))))
    ['keys', 'scores']
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
        except (ValueError, IndexError):  # the change is impossible at this point
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
