"""A neighbour's data for one's own, or mixed into it: the next key, the previous query, another head or item."""

from __future__ import annotations

from functools import partial

from conformance.trials.changes import Mixed
from conformance.trials.faults import Dice, Fault
from conformance.trials.parts.words import Parts, needs_of, somewhere

AXES = {
    "q_in": ("query", "item"),
    "k_in": ("key", "item"),
    "v_in": ("key", "item"),
    "q": ("query", "head", "channel"),
    "k": ("key", "head", "channel"),
    "v": ("key", "head", "channel"),
    "k_heads": ("head",),
    "v_heads": ("head",),
    "scaled": ("key", "query", "head"),
    "bias": ("key", "query", "head", "item"),
    "weights": ("key", "query", "head"),
    "factor": ("key", "head", "item"),
    "heads": ("query", "head", "channel"),
    "output": ("query", "width"),
}
"""Point -> the axes along which there are neighbours."""


def parts() -> Parts:
    found: Parts = {}
    for point, roles in AXES.items():
        for role in roles:
            found[f"neighbour {role}: {point}"] = partial(_everywhere, point=point, role=role)
    for point in ("q", "k", "v", "scaled", "weights"):
        found[f"neighbour in places: {point}"] = partial(_in_places, point=point)
    return found


def _mixed(dice: Dice, role: str) -> Mixed:
    share = dice.one_of((1.0, 1.0, 0.1, 0.25, 0.5))
    return Mixed(role, dice.one_of((1, -1, 1, -1, 2)), share, around=dice.chance(0.3))


def _everywhere(dice: Dice, point: str, role: str) -> Fault:
    return Fault(f"neighbouring {role}", ((point, _mixed(dice, role)),), needs=needs_of(point))


def _in_places(dice: Dice, point: str) -> Fault:
    change, needs = somewhere(dice, point, _mixed(dice, dice.one_of(AXES[point])))
    return Fault("neighbour in places", ((point, change),), needs=(*needs_of(point), *needs))
