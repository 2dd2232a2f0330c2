"""Pairs of calls of two recordings: by a map, by the names of their layers, else in order."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from mha.recordings.origins import WeightIndex
from mha.recordings.recording import Recording
from mha_core import SpecError
from mha_core.errors import listed

WEIGHTS = "the same weights"


@dataclass(frozen=True)
class Pairing:
    """A list of pairs of calls of an original and a port, by position in each recording.

    Attributes:
        how: the rule for the pairs: "name", "order", "the map", or "the same weights" (if one model has more layers).
        pairs: (call of the original, call of the port), in the order of the original's calls.
        remarks: sentences on how the calls were paired.
    """

    how: str
    pairs: tuple[tuple[int, int], ...]
    remarks: tuple[str, ...] = field(default=())

    def left(self, a: Recording, b: Recording, chosen: Collection[str]) -> dict[str, list[str]]:
        """Return the calls named in `chosen` that have no pair: {"the original's": names, "the port's": names}."""
        paired = {one for one, _ in self.pairs}, {other for _, other in self.pairs}
        return {
            whose: [name for i, name in enumerate(recording.names) if i not in positions and name in chosen]
            for recording, positions, whose in zip((a, b), paired, ("the original's", "the port's"), strict=True)
        }

    def notes(self, left: Mapping[str, list[str]]) -> Iterator[str]:
        """Yield `remarks`, and a sentence on each recording with calls that have no pair (`left`, from `self.left`)."""
        yield from self.remarks
        for whose, names in left.items():
            if names:
                yield f"No partner has {whose} {_listed(names)}: nothing was compared there."

    def stands_before(self, a: Recording, b: Recording, until: tuple[int, int]) -> tuple[tuple[int, int] | None, str]:
        """Return (positions of the last pair of calls before the point `until`, words on what was not compared).

        The words name the unpaired calls between this pair and `until`, and all attention modules that were not
        recorded; "" if there are none. The positions are None if there is no such pair.

        Args:
            a, b: the recordings of the original and of the port.
            until: a point in both recordings, as two counts: (original's calls before it, port's calls before it).
        """
        paired = {one for one, _ in self.pairs}, {other for _, other in self.pairs}
        last = max((pair for pair in self.pairs if pair[0] < until[0] and pair[1] < until[1]), default=None)
        since = last or (-1, -1)
        words = []
        for i, (recording, whose) in enumerate(((a, "original"), (b, "port"))):
            names = [recording.names[one] for one in range(since[i] + 1, until[i]) if one not in paired[i]]
            if names:
                words.append(f"{_listed(names)} of the {whose}, without a partner")
            if recording.unread:
                words.append(f"{_listed(one.name or 'the model' for one in recording.unread)} of the {whose}, not read")
        return last, "; ".join(words)


def pair_calls(a: Recording, b: Recording, named: Mapping[str, str] | None = None) -> Pairing:
    """Return the pairs of an original's and a port's calls: by the layers' names, by their weights, or in order.

    Names are used if the recording with more layers has all names of the other. Otherwise, if the numbers of layers
    differ, a layer of the port is paired with the only layer of the original that has its weights; other layers get no
    pair. If that gives no pair at all, or the numbers are equal, calls are paired in order.

    Args:
        a, b: the recordings of the original and of the port.
        named: name of a layer of the original -> name of the port's. If there are any, the other layers are only
            paired by equal names.

    Raises:
        SpecError: `named` has a name that no layer has.
    """
    own, other = _calls_by_name(a), _calls_by_name(b)
    for pair in (named or {}).items():
        for name, there, whose in zip(pair, (own, other), ("original", "port"), strict=True):
            if name not in there:
                raise SpecError(f"the map names {name!r}, and no layer of the {whose} that was called has that name")
    if named:
        back = {port: original for original, port in named.items()}
        return _by_name(b, own, {back.get(name, name): calls for name, calls in other.items()}, "the map")
    shared = own.keys() & other.keys()
    if len(shared) == min(len(own), len(other)):
        return _by_name(b, own, other, "name")
    held = _by_weights(a, b) if len(own) != len(other) else {}
    if held:
        listed_names = f"({_listed(own)}; the port's: {_listed(other)})"
        found = _by_name(
            b, own, {held.get(name, f"{name} of the port"): calls for name, calls in other.items()}, WEIGHTS
        )
        remark = f"Paired by their weights: the layers have other names, and are not as many {listed_names}."
        return replace(found, remarks=(remark, *found.remarks))
    count = min(len(a.calls), len(b.calls))
    names = f"the layers have other names ({_listed(own)}; the port's: {_listed(other)})"
    notes = [f"Paired in the order of their calls: {names}."]
    if len(a.calls) != len(b.calls):
        made = "1 call" if len(a.calls) == 1 else f"{len(a.calls)} calls"
        notes.append(f"The original made {made}, the port {len(b.calls)}: the first {count} are paired.")
    return Pairing("order", tuple((i, i) for i in range(count)), tuple(notes))


def _by_weights(a: Recording, b: Recording) -> dict[str, str]:
    """Name of a layer of the port -> that of the only one of the original's that holds its weights."""
    index = WeightIndex(a.layers)
    whose = {
        layer.name or "layer": [a.layers[one].name or "layer" for one in index.whose(layer.weights, layer.dtype)]
        for layer in b.layers
    }
    return {name: held[0] for name, held in whose.items() if len(held) == 1 and list(whose.values()).count(held) == 1}


def _by_name(b: Recording, own: dict[str, list[int]], other: dict[str, list[int]], how: str) -> Pairing:
    notes = []
    for name, positions in own.items():
        partners = other.get(name, positions)
        if len(partners) != len(positions):
            notes.append(f"{name} was called {_times(len(positions))}; in the port, {_times(len(partners))}.")
    pairs = sorted(pair for name in own for pair in zip(own[name], other.get(name, ()), strict=False))
    for first, second in pairwise(pairs):
        if first[1] > second[1]:
            calls = f"the port calls {b.names[second[1]]} before {b.names[first[1]]}"
            notes.append(f"The calls have another order: {calls}.")
            break
    return Pairing(how, tuple(pairs), tuple(notes))


def _calls_by_name(recording: Recording) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for position, call in enumerate(recording.calls):
        found[recording.layers[call.layer].name or "layer"].append(position)
    return dict(found)


def _listed(names: Iterable[str]) -> str:
    return listed(list(names), 4)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
