"""Compare the outputs of a live module, or of a backend in its place, with the reference, within the bound."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.compare import Mismatch
from conformance.judging.expected import Expected, answer
from mha_core import Trace


@dataclass(frozen=True)
class Judgement:
    """A comparison of one call with the reference.

    Attributes:
        ratios: name of an array ("scores", "output", ...) -> its largest error / allowed error; at most 1 if equal.
        error: the largest difference of the output from the reference.
        mismatches: a Mismatch for every array that exceeds its bound.
        rows_without_key: how many rows (item, head, query) are fully masked, and so were not compared.
    """

    ratios: dict[str, float]
    error: float
    mismatches: tuple[Mismatch, ...] = ()
    rows_without_key: int = 0

    @property
    def equal(self) -> bool:
        """Return whether no stage is over its bound."""
        return not self.mismatches

    @property
    def worst(self) -> float:
        """Return the largest ratio of error to allowed error over all stages."""
        return max(self.ratios.values(), default=float("inf"))


def judge_trace(trace: Trace, wanted: Expected, dtype: str) -> Judgement:
    """Return the Judgement (errors) of a trace (all intermediate arrays of a call), compared with the reference's."""
    assert trace.output is not None
    assert wanted.trace.output is not None
    error = float(np.abs(trace.output - wanted.trace.output).max(initial=0.0))
    ratios, mismatches = wanted.judge(trace, dtype)
    return Judgement(ratios, error, mismatches)


def judge_recorded(
    problem: Problem, wanted: Expected, dtype: str, left_out: NDArray[np.bool_] | None = None
) -> Judgement:
    """Return the Judgement (errors) of recorded outputs. `left_out`: bool (B, H or 1, Lq), True at rows to skip."""
    stages: dict[str, Any] = dict(problem.recorded)
    if left_out is not None:
        for name, array in problem.recorded.items():
            rows = left_out.any(axis=1) if name == "output" else left_out
            stages[name] = np.where(rows[..., None], getattr(wanted.trace, name), array).astype(array.dtype)
    return judge_trace(Trace(**stages), wanted, dtype)


def judge_original(problem: Problem, precision: Precision, wanted: Expected | None = None) -> Judgement:
    """Return the Judgement (errors) of the outputs that a live module gave in a recorded call.

    Rows that are fully masked are counted and not compared. In the reference their output is the output bias, while
    modules return NaN or something else.
    """
    wanted = answer(problem, precision) if wanted is None else wanted
    keyless = ~wanted.where.any(axis=-1)  # (B, H, Lq)
    found = judge_recorded(problem, wanted, precision.storage, keyless)
    return replace(found, rows_without_key=int(keyless.sum()))
