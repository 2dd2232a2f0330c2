"""The calls of either model: which modules make which, and what pairing needs of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from mha.recordings.modules.recording import ModuleCall, ModuleRecording
from mha.substitution.original import OriginalCall
from mha.substitution.pairing.pairs import Module
from mha_core import SpecError


def by_module(calls: Sequence[ModuleCall | OriginalCall]) -> dict[int, list[int]]:
    """Position of each module -> positions of its calls."""
    found: dict[int, list[int]] = defaultdict(list)
    for position, call in enumerate(calls):
        found[call.module].append(position)
    return found


def holds(calls: Sequence[ModuleCall | OriginalCall], outer: int, inner: int | None) -> bool:
    """Whether a call was made within another one."""
    while inner is not None and inner > outer:
        inner = calls[inner].within
    return inner == outer


def inputs_of(recording: ModuleRecording) -> Mapping[str, Any]:
    """What the port itself was called with."""
    first = recording.calls[0]
    arrays = {at.place: recording.array(at) for at in first.given}
    if any(len(place) != 1 for place in arrays):
        raise SpecError("the port is called with nested arrays: say what the original is called with (inputs=)")
    plain = {place[0]: value for place, value in first.plain.items() if len(place) == 1 and value is not None}
    return {**{place[0]: array for place, array in arrays.items()}, **plain}


def _within(calls: Sequence[ModuleCall | OriginalCall]) -> dict[int, tuple[int, ...]]:
    """Position of each module -> those around its first call, the nearest first."""
    found: dict[int, tuple[int, ...]] = {}
    around: list[tuple[int, ...]] = []
    for call in calls:
        outer = () if call.within is None else (calls[call.within].module, *around[call.within])
        around.append(tuple(dict.fromkeys(outer)))
        found.setdefault(call.module, around[-1])
    return found


def modules_of(own: Sequence[Any], calls: Sequence[ModuleCall | OriginalCall]) -> list[Module]:
    """What pairing needs of the modules of either model."""
    within = _within(calls)
    first = {call.module: call.shapes for call in reversed(calls)}
    each = [frozenset(one.numbers for one in module.parameters.values()) for module in own]
    return [
        Module(module.name, module.kind, module.numbers, each[position], within[position], first[position])
        for position, module in enumerate(own)
    ]
