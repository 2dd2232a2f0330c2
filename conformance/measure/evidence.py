"""Evidence: a subject beside one model of it: the answers of both, and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.kinds.made import TROUBLE, Model
from conformance.measure.asker import Asker
from conformance.zoo.variants import Variants
from mha_core.stages import is_gradient


@dataclass(eq=False)
class Evidence:
    """One subject, what runs models of it, and the model of the bugs that are known so far."""

    asker: Asker
    variants: Variants
    model: Model = ()

    def allowed(self, wanted: NDArray) -> float:
        """Return how much of an output may be left of an array that gives it."""
        return max(LEFT, ROUNDOFFS * self.asker.unit) * float(np.abs(wanted).max(initial=1e-300))


LEFT, ROUNDOFFS = 1e-9, 2000.0
"""Share of the largest number that may be left, and roundoffs of it in coarser arithmetic."""


def gives(asker: Asker, variants: Variants, problem: Problem, model: Model, *, gradients: bool = False) -> bool:
    """Return whether a model gives what the subject gives for a problem: its output, or with `gradients` its gradients.

    A model without bugs must be right within the bounds, as in the suite; another within `Asker.nearness`. False too
    where the model was measured in calls so unlike this one that it has no meaning here.
    """
    if not (model or gradients):
        return asker.is_right(problem)
    trace = asker.ask(problem)
    assert trace is not None
    wanted = asker.wanted(problem)
    arrays: Mapping[str, NDArray] = trace.arrays()
    names = [name for name in arrays if is_gradient(name)] if gradients else ["output"]
    if not model:
        return all(wanted.allows(name, arrays[name], "float64") for name in names)
    try:
        made = variants.run(asker.rounded(problem), model, gradients=gradients)
    except TROUBLE:
        return False
    near, allowed = asker.nearness.near, wanted.allowed_error
    if made is None:  # a bias that is missing, in a layer without projections: what the others give
        possible = tuple(bug for bug in model if variants.run(asker.rounded(problem), (bug,)) is not None)
        return len(possible) < len(model) and gives(asker, variants, problem, possible, gradients=gradients)
    if not made:
        return False
    if _hangs_on_rounding(made, asker.unit):
        return True
    return all(name in made and near(made[name], arrays[name], allowed[name]) for name in names)


LARGEST = 1e20
"""Scores from here on are those of numbers that stand for nothing, as in padding."""


def _hangs_on_rounding(made: Mapping[str, NDArray], unit: float) -> bool:
    """Return whether a model lets in keys whose scores are so large that rounding decides which of them is the highest.

    No two layers need agree then, whatever is wrong with them.
    """
    with any_numbers:
        scores = np.where(made["weights"] > 0.0, made["scores"], -np.inf)
        highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        close = (made["scores"] >= highest - ROUNDOFFS * unit * np.abs(highest)).sum(axis=-1) > 1
        return bool((close & (np.abs(highest[..., 0]) > LARGEST) & np.isfinite(highest[..., 0])).any())
