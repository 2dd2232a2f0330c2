"""Factors on anything: constants, and what depends on a size."""

from __future__ import annotations

from functools import partial

from conformance.trials.faults import Dice, Fault
from conformance.trials.parts.words import Parts, factor, needs_of, somewhere

POINTS = (
    *("q_w", "k_w", "v_w", "o_w", "q_b", "v_b", "o_b", "q_in", "v_in", "q", "k", "v", "past_k", "past_v"),
    *("raw", "scale", "scaled", "softcap", "bias", "scores", "total", "weights", "factor", "kept", "heads", "merged"),
    *("output", "hidden", "vector"),
)


def parts() -> Parts:
    everywhere: Parts = {f"factor: {point}": partial(_everywhere, point=point) for point in POINTS}
    places = ("q", "k", "v", "scaled", "scores", "weights", "kept", "heads", "output")
    in_places: Parts = {f"factor in places: {point}": partial(_in_places, point=point) for point in places}
    return everywhere | in_places


def _everywhere(dice: Dice, point: str) -> Fault:
    return Fault("factor", ((point, factor(dice)),), needs=needs_of(point))


def _in_places(dice: Dice, point: str) -> Fault:
    change, needs = somewhere(dice, point, factor(dice))
    return Fault("factor in places", ((point, change),), needs=(*needs_of(point), *needs))
