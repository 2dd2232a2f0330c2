"""Pair the calls of two recordings: by the names of their layers, else in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mha.recordings.recording import Recording
from mha_core import SpecError

WAYS = ("name", "order")


@dataclass(frozen=True)
class Pairing:
    """Pairs of calls, by position in each recording.

    Attributes:
        by: "name" or "order".
        pairs: (call of the original, call of the port), in the order of the original's calls.
        left: calls of the original without a partner.
        right: calls of the port without one.
        notes: remarks about the pairing.
    """

    by: str
    pairs: tuple[tuple[int, int], ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
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
        return _by_name(a, b, own, other)
    count = min(len(a.calls), len(b.calls))
    notes = []
    if by is None:
        notes.append(
            f"Paired in the order of their calls: the layers have other names ({_listed(own)}; the port's: "
            f"{_listed(other)})."
        )
    else:
        notes.append("Paired in the order of their calls.")
    if len(a.calls) != len(b.calls):
        notes.append(
            f"The original made {_calls(len(a.calls))}, the port {len(b.calls)}: the first {count} are paired."
        )
    pairs = tuple((i, i) for i in range(count))
    return Pairing("order", pairs, tuple(range(count, len(a.calls))), tuple(range(count, len(b.calls))), tuple(notes))


def _by_name(a: Recording, b: Recording, own: dict[str, list[int]], other: dict[str, list[int]]) -> Pairing:
    pairs, left = [], []
    right = {position for positions in other.values() for position in positions}
    notes = ["Paired by name."]
    for name, positions in own.items():
        partners = other.get(name, [])
        if partners and len(partners) != len(positions):
            notes.append(f"{name} was called {_times(len(positions))}; in the port, {_times(len(partners))}.")
        pairs += list(zip(positions, partners, strict=False))
        right -= set(partners[: len(positions)])
        left += positions[len(partners) :]
    pairs.sort()
    later = [(one, two) for one, two in pairwise(pairs) if one[1] > two[1]]
    if later:
        (first, second) = later[0]
        notes.append(f"The calls have another order: the port calls {b.names[second[1]]} before {b.names[first[1]]}.")
    return Pairing("name", tuple(pairs), tuple(sorted(left)), tuple(sorted(right)), tuple(notes))


def unpaired_lines(a: Recording, b: Recording, pairing: Pairing) -> Iterator[str]:
    """One line for each recording that has calls without a partner."""
    for recording, positions, whose in ((a, pairing.left, "the original's"), (b, pairing.right, "the port's")):
        if positions:
            yield f"No partner has {whose} {_listed([recording.names[position] for position in positions])}."


def _calls_by_name(recording: Recording) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for position, call in enumerate(recording.calls):
        found[recording.layers[call.layer].name or "layer"].append(position)
    return dict(found)


def _listed(names: Sequence[str] | dict[str, list[int]]) -> str:
    names = list(names)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
