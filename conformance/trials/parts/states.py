"""What a layer remembers of earlier calls: a second call of the same layer is not like the first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.trials.changes import Only, Own
from conformance.trials.faults import Dice, Fault
from conformance.trials.layer import View
from conformance.trials.parts.words import Parts, factor

POINTS = ("q", "v", "scaled", "weights", "heads", "output", "o_w")

STATE = "state"
"""The kind of these faults; only a repeated call shows them."""


def parts() -> Parts:
    return {"second call: factor": _factor, "second call: growing": _growing}


def _factor(dice: Dice) -> Fault:
    change = Only(factor(dice), "from the second call on", lambda array, point, view: view.calls > 0)
    return Fault(STATE, ((dice.one_of(POINTS), change),))


def _growing(dice: Dice) -> Fault:
    step = dice.one_of((0.01, 0.1))

    def grown(x: NDArray, view: View) -> NDArray:
        return x * np.asarray(1.0 + step * view.calls)

    return Fault(STATE, ((dice.one_of(POINTS), Own(f"{step:g} more with each call", grown)),))
