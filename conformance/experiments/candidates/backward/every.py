"""All formulas for the steps of a run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.experiments.candidates.backward import attention, scores
from conformance.experiments.candidates.backward.anywhere import of_any
from conformance.experiments.candidates.backward.formula import (
    Formula,
    nothing,
)
from conformance.experiments.candidates.backward.parameters import of_parameters, of_projections
from mha_core.reference import backward
from mha_core.reference.state import State


def formulas_of(state: State) -> Iterator[Formula]:
    """Every formula for the steps of a run: factors first, then those of each step, then those of any step."""
    arrays = [name for name in backward.BACKWARD if isinstance(state.arrays.get(name), np.ndarray)]
    for step in arrays:
        yield nothing(step)
    yield from attention.FORMULAS
    yield from scores.FORMULAS
    yield from of_projections()
    yield from of_parameters(state)
    for step in arrays:
        yield from of_any(step, state[step].ndim)
