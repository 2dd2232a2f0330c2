"""The bound of the query scale by position, forward and backward."""

from __future__ import annotations

import numpy as np

from conformance.bounds.bounded import Bounded
from conformance.bounds.steps import Bounds

LOG_ULPS = 4.0
"""Error of one logarithm in units in its last place."""


def factors(b: Bounds) -> Bounded | None:
    """(1 or B, Lq): the factors, exact where they are given; else off by their logarithm, and rounded to the dtype.

    The floor is of integers, so it has no error. The logarithm is computed in float32 at least.
    """
    state, r, exact = b.state, b.rounding, b.state["query_scale"]
    if exact is None:
        return None
    given, settings = state.inputs.rotary, state.config.query_scale
    if (given is not None and given.query_scale is not None) or settings is None or settings.rule is None:
        return Bounded.exact(exact)
    logarithm = np.abs(exact - 1.0)
    computed = r.unit(r.precision.us) * (2.0 * (LOG_ULPS + 2.0) * logarithm + np.abs(exact))
    return r.store(Bounded(exact, computed), lost=0.0)


def scaled(b: Bounds, x: Bounded) -> Bounded:
    """(B, H, Lq, d): the bound of queries, or of their gradient, times the factors; x without a query scale."""
    scale: Bounded | None = b["query_scale"]
    return x if scale is None else b.rounding.elementwise(x, scale.map(lambda array: array[:, None, :, None]))
