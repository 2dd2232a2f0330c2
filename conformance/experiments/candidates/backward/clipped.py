"""Gradients clipped inside the layer, at steps whose array can't be read off: by which bound is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.parameter import snapped, solve
from conformance.experiments.measured import on_step
from conformance.experiments.readings.backward import Backward
from conformance.zoo.bug import Bug

STEPS = ("d_merged", "d_heads", "d_kept_weights", "d_weights", "d_scores", "d_similarity")
"""Those of which the gradients tell too little to read them."""

STARTS = (0.9, 0.6, 0.3)
"""Shares of an array's numbers that a bound leaves as they are, from which it is looked for."""

MOST_NAMES = 3
"""Gradients from which a bound is looked for, one after another: some may have another fault besides."""


def clipped_inside(found: Sequence[Backward], words: dict[str, str], unit: float) -> Iterator[tuple[int, Bug]]:
    """Each step with the bound that gives one of the gradients, and how many of them it gives."""
    one = found[0]
    for step in STEPS:
        names = [name for name in one.reached(step) if name in one.wrong]
        for name in names[:MOST_NAMES]:
            bound = _bound(one, step, name, unit)
            if bound is not None:
                made = one.with_array(step, one.state[step].clip(-bound, bound))
                yield sum(one.is_measured(other, made[other]) for other in names), _clipped(step, words[step], bound)
                break


def _bound(one: Backward, step: str, name: str, unit: float) -> float | None:
    """The bound by which a step gives a gradient."""
    array, measured = one.state[step], one.measured[name]
    largest = float(np.abs(array).max(initial=0.0))

    def distance(bound: float) -> NDArray:
        found: NDArray = (one.with_array(step, array.clip(-abs(bound), abs(bound)))[name] - measured).ravel()
        return found

    numbers = [float(np.quantile(np.abs(array), share)) for share in STARTS]
    bound = solve(distance, numbers, 10.0 * unit * float(np.abs(measured).max(initial=0.0)))
    if bound is None or not 0.0 < abs(bound) < largest:
        return None
    return snapped(abs(bound), 1e-9)


def _clipped(step: str, words: str, bound: float) -> Bug:
    return on_step(
        step,
        f"{step.replace('_', '-')}-clipped-at-{bound:g}",
        lambda state, array: array.clip(-bound, bound),
        f"{words} is the definition's, clipped at +-{bound:g}.",
        "Clip gradients, if at all, after the whole backward direction.",
    )
