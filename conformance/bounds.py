"""The only tolerances: how far a computed array may lie from the reference, element by element.

Every tolerance is a multiple of u, the unit roundoff of the tested dtype, times the size of the
numbers that the element was made from. Where the definition says "exactly", it is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.problem import Problem
from mha_core import STAGES, Trace

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding to the dtype."""


class Tolerance(NamedTuple):
    """`units` roundoffs of what stands in an array are allowed, for `reason`."""

    units: float
    reason: str


TOLERANCES: Mapping[str, Tolerance] = {
    "queries": Tolerance(32, "one matrix product: errors of n terms grow like sqrt(n), n up to 384 here"),
    "keys": Tolerance(32, "as queries"),
    "values": Tolerance(32, "as queries"),
    "scores": Tolerance(64, "a product of two rounded arrays, which also cancels more than they do"),
    "weights": Tolerance(16, "exp turns an absolute error of a score into a relative one, hence per unit of score"),
    "heads": Tolerance(16, "as weights; the sum itself adds less"),
    "output": Tolerance(48, "one more matrix product on top of heads"),
    "gradients": Tolerance(64, "four matrix products deep, measured against the largest gradient of the problem"),
}
"""float64: 64 units are 7e-15. A float32 softmax inside a float64 path is 1e7 units away."""


def allowed_error(problem: Problem, expected: Trace, dtype: str) -> dict[str, NDArray]:
    """The error allowed in each element of each stage and gradient.

    Args:
        problem: what was run, already rounded to `dtype`.
        expected: what the reference computed for it.
        dtype: what the subject computed in.

    Returns:
        Stage name -> array of the stage's shape; "gradients.NAME" -> array of the gradient's shape.
    """
    unit = UNIT_ROUNDOFF[dtype]
    allowed_keys = problem.allowed()
    stages = dict(expected.stages())
    scores = np.where(allowed_keys, stages["scores"], 0.0)
    steepness = 1.0 + _largest_per_item(scores)
    allowed: dict[str, NDArray] = {}
    for stage in STAGES:
        array = stages[stage]
        source = stages["values"] if stage == "heads" else scores if stage == "scores" else array
        size = _largest_per_item(source)
        if stage in ("weights", "heads", "output"):
            size = size * steepness
        per_item = TOLERANCES[stage].units * unit * size
        allowed[stage] = np.broadcast_to(per_item.reshape(-1, *(1,) * (array.ndim - 1)), array.shape).copy()
    _exact_where_defined(allowed, problem)
    if expected.gradients is not None:
        largest = max((_largest(array) for array in expected.gradients.values()), default=0.0)
        most = TOLERANCES["gradients"].units * unit * largest * _largest(steepness)
        for name, array in expected.gradients.items():
            allowed[f"gradients.{name}"] = np.full(array.shape, most)
        for name in ("keys", "values"):
            allowed[f"gradients.{name}"][problem.padding()] = 0.0
    return allowed


def _exact_where_defined(allowed: dict[str, NDArray], problem: Problem) -> None:
    """Excluded weights are exactly 0, the weight of a lone key is exactly 1, and a row without a key
    gives exactly 0, and then the output bias.
    """
    keys = problem.allowed()
    row_has_key = keys.any(axis=-1)
    allowed["weights"][~keys | (keys.sum(axis=-1, keepdims=True) == 1)] = 0.0
    allowed["heads"][~row_has_key] = 0.0
    allowed["output"][~row_has_key.any(axis=1)] = 0.0


def _largest_per_item(array: NDArray) -> NDArray:
    """(B, ...) -> (B,): the largest finite magnitude in each batch item, 0 where there is none."""
    magnitude = np.where(np.isfinite(array), np.abs(array), 0.0)
    return magnitude.max(axis=tuple(range(1, array.ndim)), initial=0.0)


def _largest(array: NDArray) -> float:
    return float(np.where(np.isfinite(array), np.abs(array), 0.0).max(initial=0.0))
