"""The expected answer to a problem: the reference's stages and gradients, and the allowed error of each element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.bounds.tolerance import allowed_error
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from mha_core import Trace
from mha_core.reference import pipeline as reference


@dataclass(frozen=True, eq=False)
class Expected:
    """The answer to one problem in one precision.

    Attributes:
        problem: the problem rounded to the storage dtype, as subjects get it.
        trace: the reference's stages and gradients in float64.
        allowed_error: stage name, or "gradients.NAME" -> the error allowed in each element.
        where: bool (B, H, Lq, Lk), where attention is allowed: the only places where scores count.
    """

    problem: Problem
    trace: Trace
    allowed_error: Mapping[str, NDArray]
    where: NDArray[np.bool_]


def answer(problem: Problem, precision: Precision) -> Expected:
    """Run the reference on a problem, rounded to the storage dtype first, and bound its errors."""
    rounded = problem.rounded(precision.storage)
    state = reference.run_state(rounded.config, rounded.weights, rounded.inputs)
    return Expected(rounded, reference.trace_of(state), allowed_error(state, precision), state["allowed"])


@lru_cache(maxsize=512)
def expected(case: Case, precision: Precision) -> Expected:
    """The answer to a case, computed once per precision however many subjects there are."""
    return answer(case.build(), precision)
