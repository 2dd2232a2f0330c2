"""Pair the calls of two recordings: by the names of their layers, else in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from mha.recordings.recording import Recording
from mha_core import SpecError
from mha_core.errors import listed

WAYS = ("name", "order")


@dataclass(frozen=True)
class Pairing:
    """Pairs of calls, by position in each recording.

    Attributes:
        by: "name" or "order".
        pairs: (call of the original, call of the port), in the order of the original's calls.
        notes: remarks about the pairing.
    """

    by: str
    pairs: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]


def pair_calls(a: Recording, b: Recording, by: str | None = None) -> Pairing:
    """Pair the calls of an original with those of a port.

    By name if every layer of the one that has fewer is in the other by its name; call by call of each layer. Else in
    the order in which calls were made.

    Args:
        a, b: the original and the port.
        by: one of WAYS. Default: "name" where that is possible as above, else "order".

    Raises:
        SpecError: `by` is "name", and no layer has a partner of its name; or it is neither.
    """
    if by not in (None, *WAYS):
        raise SpecError(f"pairs are made by {' or '.join(map(repr, WAYS))}. Got {by!r}.")
    own, other = _calls_by_name(a), _calls_by_name(b)
    shared = own.keys() & other.keys()
    if by == "name" and not shared:
        raise SpecError(f"no layer of the port has a name of the original's: {_listed(other)}; {_listed(own)}")
    if by == "name" or (by is None and len(shared) == min(len(own), len(other))):
        return _by_name(b, own, other)
    count = min(len(a.calls), len(b.calls))
    names = f": the layers have other names ({_listed(own)}; the port's: {_listed(other)})" if by is None else ""
    notes = [f"Paired in the order of their calls{names}."]
    if len(a.calls) != len(b.calls):
        made = "1 call" if len(a.calls) == 1 else f"{len(a.calls)} calls"
        notes.append(f"The original made {made}, the port {len(b.calls)}: the first {count} are paired.")
    return Pairing("order", tuple((i, i) for i in range(count)), tuple(notes))


def _by_name(b: Recording, own: dict[str, list[int]], other: dict[str, list[int]]) -> Pairing:
    notes = ["Paired by name."]
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
    return Pairing("name", tuple(pairs), tuple(notes))


def unpaired_lines(a: Recording, b: Recording, pairing: Pairing, chosen: Iterable[str]) -> Iterator[str]:
    """One line for each recording in which some of the `chosen` calls have no partner."""
    paired = [{one for one, _ in pairing.pairs}, {other for _, other in pairing.pairs}]
    for recording, positions, whose in zip((a, b), paired, ("the original's", "the port's"), strict=True):
        left = [name for i, name in enumerate(recording.names) if i not in positions and name in chosen]
        if left:
            yield f"No partner has {whose} {_listed(left)}."


def _calls_by_name(recording: Recording) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for position, call in enumerate(recording.calls):
        found[recording.layers[call.layer].name or "layer"].append(position)
    return dict(found)


def _listed(names: Iterable[str]) -> str:
    return listed(list(names), 4)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
