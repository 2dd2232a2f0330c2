"""Nonlinear functions of any stage."""

from __future__ import annotations

from functools import partial

import numpy as np

from conformance.trials.changes import Bent, Change
from conformance.trials.faults import Dice, Fault
from conformance.trials.parts.words import Parts, needs_of, somewhere

POINTS = ("q_in", "v_in", "q", "k", "v", "raw", "scaled", "scores", "weights", "kept", "heads", "merged", "output")


def parts() -> Parts:
    found: Parts = {f"bent: {point}": partial(_everywhere, point=point) for point in POINTS}
    return found | {
        f"bent in places: {point}": partial(_in_places, point=point) for point in ("q", "v", "scaled", "heads")
    }


def _bent(dice: Dice) -> Change:
    cap, slope, power = dice.one_of((0.5, 1.0, 2.0, 5.0)), dice.one_of((0.0, 0.01, 0.2)), dice.one_of((0.5, 1.5, 2.0))
    return dice.one_of(
        (
            Bent(f"{cap:g} tanh(x / {cap:g})", lambda x: cap * np.tanh(x / cap)),
            Bent(f"clipped to {cap:g}", lambda x: x.clip(-cap, cap)),
            Bent("its absolute value", np.abs),
            Bent("its square", np.square),
            Bent(f"to the power of {power:g}, with its sign", lambda x: np.sign(x) * np.abs(x) ** power),
            Bent(f"{slope:g} times as large where negative", lambda x: np.where(x < 0.0, slope * x, x)),
            Bent("its sine", np.sin),
            Bent("0 where it is below 0.05 in size", lambda x: np.where(np.abs(x) < 0.05, 0.0, x)),
        )
    )


def _everywhere(dice: Dice, point: str) -> Fault:
    return Fault("bent", ((point, _bent(dice)),), needs=needs_of(point))


def _in_places(dice: Dice, point: str) -> Fault:
    change, needs = somewhere(dice, point, _bent(dice))
    return Fault("bent in places", ((point, change),), needs=(*needs_of(point), *needs))
