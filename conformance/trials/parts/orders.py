"""Another order of any axis of anything."""

from __future__ import annotations

from functools import partial

from conformance.trials.faults import Dice, Fault
from conformance.trials.parts.words import Parts, needs_of, order, somewhere

AXES = {
    "q_in": ("width", "query", "item"),
    "k_in": ("width", "key", "item"),
    "v_in": ("width", "key", "item"),
    "q_w": ("joined", "width"),
    "k_w": ("joined", "width"),
    "v_w": ("joined", "width"),
    "o_w": ("joined", "width"),
    "q_b": ("joined",),
    "v_b": ("joined",),
    "o_b": ("width",),
    "q": ("head", "query", "channel", "item"),
    "k": ("head", "key", "channel", "item"),
    "v": ("head", "key", "channel", "item"),
    "k_heads": ("head",),
    "v_heads": ("head",),
    "past_k": ("head", "key", "channel"),
    "past_v": ("head", "key", "channel"),
    "scaled": ("head", "query", "key", "item"),
    "bias": ("head", "query", "key", "item"),
    "weights": ("head", "query", "key", "item"),
    "factor": ("head", "query", "key", "item"),
    "heads": ("head", "query", "channel", "item"),
    "merged": ("joined", "query"),
    "output": ("width", "query", "item"),
    "allow": ("head", "query", "key", "item"),
    "vector": ("unit",),
}
"""Point -> the axes that are put in another order there."""

PLURALS = {"query": "queries", "joined": "joined channels"}


def parts() -> Parts:
    found: Parts = {}
    for point, roles in AXES.items():
        for role in roles:
            found[f"order of {role}: {point}"] = partial(_everywhere, point=point, role=role)
    for point in ("q", "k", "v", "scaled", "weights", "heads", "output"):
        found[f"order in places: {point}"] = partial(_in_places, point=point)
    return found


def _everywhere(dice: Dice, point: str, role: str) -> Fault:
    return Fault(f"order of {PLURALS.get(role, role + 's')}", ((point, order(dice, role)),), needs=needs_of(point))


def _in_places(dice: Dice, point: str) -> Fault:
    change, needs = somewhere(dice, point, order(dice, dice.one_of(AXES[point])))
    return Fault("order in places", ((point, change),), needs=(*needs_of(point), *needs))
