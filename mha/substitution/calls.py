"""The calls of either model: which modules make which, what pairing needs of them, and the judgement on one."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray

from mha.recordings.modules.recording import ModuleCall, ModuleRecording
from mha.recordings.modules.values import Place
from mha.substitution.allowance import Judged
from mha.substitution.original import OriginalCall
from mha.substitution.pairing.pairs import Module, Pairs


class Part(NamedTuple):
    """A submodule whose outputs are replaced by the port's while the original's module around it runs.

    Attributes:
        original: position of the original's submodule.
        name: name of the port's submodule.
        calls: (the original's call, the port's call or None) for each call of the original's submodule.
        right: whether the port's submodule is right.
        instead: for each call, key path -> array that replaces an output. If empty, the port's outputs replace all.
        active: a function that is first applied to the port's outputs; None if there is none.
        again: whether the port's submodule gets two different arrays where the original's gets one array twice.
        asked: whether the submodule's floating-point inputs are compared. Masks and indices are always compared.
    """

    original: int
    name: str
    calls: Sequence[tuple[OriginalCall, ModuleCall | None]]
    right: bool
    instead: Sequence[Mapping[Place, NDArray]] = ()
    active: Callable[[NDArray], NDArray] | None = None
    again: bool = False
    asked: bool = True


@dataclass
class CallJudgement:
    """A comparison of one call of a port's module with the original's module on the same inputs.

    Attributes:
        arrays: key path of each output of the port's module -> its comparison with the original's output.
        layouts: how arrays of the port were transposed or reshaped to the original's shapes, in words.
        own: key paths of inputs that only the original's module has. They keep the values of the original's own run.
        masks: name of a mask whose form differs between the models -> number of different entries.
        unmatched: key paths of the port's outputs that the original does not have.
        missing: key paths of the original's outputs that the port does not have.
        notes: further remarks, in words.
        own_masks: whether the original's own masks were used, because the port changes its masks inside the module.
        padding: number of rows that differ but are ignored, because they are padding: no other row depends on them.
        other_masks: whether True in the port's masks was read as the opposite of True in the original's masks.
    """

    arrays: dict[Place, Judged] = field(default_factory=dict)
    layouts: tuple[str, ...] = ()
    own: tuple[Place, ...] = ()
    masks: dict[str, int] = field(default_factory=dict)
    unmatched: tuple[Place, ...] = ()
    missing: tuple[Place, ...] = ()
    notes: list[str] = field(default_factory=list)
    padding: int = 0
    own_masks: bool = False
    other_masks: bool = False

    @property
    def worst(self) -> tuple[Place, Judged]:
        """Return (key path of the array with the largest error, comparison of this array)."""
        return max(self.arrays.items(), key=lambda item: item[1].ratio)


def by_module(calls: Sequence[ModuleCall | OriginalCall]) -> dict[int, list[int]]:
    """Return position of each module -> positions of its calls."""
    found: dict[int, list[int]] = defaultdict(list)
    for position, call in enumerate(calls):
        found[call.module].append(position)
    return found


def holds(calls: Sequence[ModuleCall | OriginalCall], outer: int, inner: int | None) -> bool:
    """Return whether the call at position `inner` was made during the call at position `outer`, or is the same call."""
    while inner is not None and inner > outer:
        inner = calls[inner].within
    return inner == outer


def inputs_of(recording: ModuleRecording) -> Mapping[Any, Any]:
    """Return a dict of the arguments of the port's first call: name, or index of a positional argument -> value."""
    first = recording.calls[0]
    plain = {place: value for place, value in first.plain.items() if value is not None or len(place) > 1}
    nested: dict[str, Any] = {}
    for place, value in (plain | {at.place: recording.array(at) for at in first.given}).items():
        inner = nested
        for name in place[:-1]:
            inner = inner.setdefault(name, {})
        inner[place[-1]] = value
    return {int(name) if name.isdecimal() else name: _sequences(value) for name, value in nested.items()}


def _sequences(value: Any) -> Any:
    """The value with tuples in place of dicts whose names are numbers, as those of tuples and lists are recorded."""
    if not isinstance(value, dict):
        return value
    parts = {name: _sequences(part) for name, part in value.items()}
    numbers = [str(number) for number in range(len(parts))]
    return tuple(parts[number] for number in numbers) if set(parts) == set(numbers) else parts


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
    """Return a Module (the data by which modules are paired) for each of `own`. `calls`: all calls of the model."""
    within = _within(calls)
    first = {call.module: call.shapes for call in reversed(calls)}
    each = [frozenset(one.numbers for one in module.parameters.values()) for module in own]
    return [
        Module(module.name, module.kind, module.numbers, each[position], within[position], first[position])
        for position, module in enumerate(own)
    ]


def uncovered(pairs: Pairs, is_judged: Callable[[int], bool]) -> tuple[str, ...]:
    """Return the names of modules whose own parameters are covered by no verdict, or only by that on the whole model.

    Own parameters are those outside submodules. A module without an original is left out if other modules of the
    original have its parameters. `is_judged`: position of a module -> whether it has a verdict.
    """
    own = [module.numbers.size for module in pairs.ports]
    for module in pairs.ports:
        holder = next((one for one in module.within if pairs.ports[one].numbers.size), None)
        if holder is not None:
            own[holder] -= module.numbers.size
    found = []
    for port, module in enumerate(pairs.ports):
        around = [one for one in (port, *module.within) if one or not pairs.inside_ports[0]]
        elsewhere = module.each <= pairs.originals[0].each and all(one.known for one in module.each)
        if elsewhere and pairs.original_of(port) is None and is_judged(0):
            continue
        if own[port] > 0 and around and not any(map(is_judged, around)):
            found.append(module.name)
    return tuple(found)
