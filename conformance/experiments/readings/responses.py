"""Responses: how much of each output is due to each item's values, and how much of a step is other items'.

The output is linear in the values, so differences of answers give the response tensor exactly:

    R[b, b', h, i, j] = d output[b, i, (h, c)] / d values[b', j, c]

which of a right layer is weights[b, h, i, j] where b = b', and 0 elsewhere. Of other steps the same follows by least
squares: if item b gets sum_b' M[b, b'] of the items' queries, its scores are the same sum of their scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.linear import least_squares
from conformance.experiments.readings.weights import Answer, read_weights

FITS = 1e-7
"""Relative residual below which an array is the sum of others."""


def read_responses(answer: Answer, problem: Problem) -> NDArray | None:
    """(B, B', H, Lq, Lk): the weight of item b's queries on the values of item b'; None if an answer was refused.

    >>> from conformance.experiments.designs import CONFIGS, generic
    >>> from mha_core import reference
    >>> found = read_responses(
    ...     lambda one: reference.run(one.config, one.weights, one.inputs).output, generic(CONFIGS[0], batch=2))
    >>> bool(abs(found[0, 1]).max() < 1e-12), bool(abs(found[1, 1].sum(axis=-1) - 1.0).max() < 1e-12)
    (True, True)
    """
    found = []
    for item in range(problem.sizes.batch):
        weights = read_weights(answer, problem, of_item=item)
        if weights is None:
            return None
        found.append(weights)
    return np.stack(found, axis=1)


def read_mixture(measured: NDArray, parts: Sequence[NDArray], unit: float) -> NDArray | None:
    """(B, B): M with measured[b] = sum_b' M[b, b'] parts[b'][b], by least squares; None if it is no such sum.

    Args:
        measured: (B, ...). A NaN is a place that was not measured.
        parts: for each item b' (B, ...): the array in which every item has what item b' has.
        unit: relative error of the measured numbers.
    """
    rows = []
    for item in range(len(measured)):
        columns = np.stack([part[item].ravel() for part in parts], axis=1)
        wanted = measured[item].ravel()
        known = np.isfinite(wanted) & np.isfinite(columns).all(axis=1)
        if known.sum() < len(parts):
            return None
        row, rank = least_squares(columns[known], wanted[known])
        off = np.abs(columns[known] @ row - wanted[known]).max(initial=0.0)
        if rank < len(parts) or off > max(FITS, 1e4 * unit) * max(np.abs(wanted[known]).max(initial=0.0), 1e-3):
            return None
        rows.append(row)
    return np.array(rows)


def own_and_other(matrix: NDArray, other: NDArray, unit: float) -> tuple[float, float] | None:
    """(a, c) with matrix = a I + c other; None if there are no such numbers."""
    size = len(matrix)
    columns = np.stack([np.eye(size).ravel(), other.ravel()], axis=1)
    (own, rest), rank = least_squares(columns, matrix.ravel())
    off = np.abs(columns @ np.array([own, rest]) - matrix.ravel()).max()
    return (float(own), float(rest)) if rank == 2 and off < max(FITS, 1e5 * unit) else None
