"""What changed from one release of a framework to the next: subject by subject, in short lines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from packaging.version import InvalidVersion, Version

from mha.matrix.judged import DEVIATION, FAILED
from mha.matrix.record import Fact, Judged, Place, Row

SHOWN_CASES = 3
"""Cases that a line names; of more it says how many."""


@dataclass(frozen=True)
class Change:
    """Something that one release of a framework does and the one before it does not, or the other way round.

    Attributes:
        subject: the layer.
        text: what changed, in words.
        before, since: the two releases.
        places: the cases and dtypes in which it changed.
    """

    subject: str
    text: str
    before: str
    since: str
    places: tuple[Place, ...]

    def to_dict(self) -> dict[str, Any]:
        """The change as JSON can hold it."""
        said = {"subject": self.subject, "what": self.text, "before": self.before, "since": self.since}
        return {**said, "places": [list(place) for place in self.places]}


def where(places: Collection[Place]) -> str:
    """The cases of these places, counted; "" for a probe.

    >>> where([("causal", "float64"), ("causal", "float32")])
    ': 1 case (causal), float32 and float64'
    """
    cases = sorted({case for case, dtype in places if dtype})
    if not cases:
        return ""
    named = ", ".join(cases[:SHOWN_CASES]) + (", ..." if len(cases) > SHOWN_CASES else "")
    dtypes = " and ".join(sorted({dtype for _, dtype in places}))
    return f": {len(cases)} case{'s' * (len(cases) > 1)} ({named}), {dtypes}"


def in_order(rows: Sequence[Row]) -> list[Row]:
    """The rows of one backend in the order of its releases: by the main package's version, then by the others'."""
    return sorted(rows, key=lambda row: [_version(text) for text in row.versions.values()])


def changes(rows: Sequence[Row]) -> list[Change]:
    """The changes between neighbours among the judged rows of one backend, which are in the order of its releases."""
    found: list[Change] = []
    for old, new in pairwise(rows):
        for name in dict.fromkeys([*old.judged, *new.judged]):
            before, after = old.judged.get(name), new.judged.get(name)
            if before is None or after is None:
                text = "first there" if before is None else "no longer there"
                found.append(Change(name, text, old.release, new.release, ()))
            else:
                found += _of_subject(before, after, old.release, new.release)
    return found


def _of_subject(before: Judged, after: Judged, old: str, new: str) -> list[Change]:
    both = before.judged & after.judged
    asked_before, asked_after = before.judged | _failed(before), after.judged | _failed(after)
    found = []
    for fact in sorted({*before.facts, *after.facts}):
        # Of a case without an answer nothing is known but that; of one that was not asked for, not even that.
        where = asked_before & asked_after if fact[0] == FAILED else both
        earlier, later = before.facts.get(fact, set()) & where, after.facts.get(fact, set()) & where
        for places, happens in ((later - earlier, True), (earlier - later, False)):
            if places:
                found.append(Change(after.subject, _text(fact, happens), old, new, tuple(sorted(places))))
    return found


def _failed(judged: Judged) -> set[Place]:
    return {place for fact, places in judged.facts.items() if fact[0] == FAILED for place in places}


def _text(fact: Fact, happens: bool) -> str:
    kind, what = fact
    if kind == DEVIATION:
        return f"{what} {'is seen' if happens else 'is no longer seen'}"
    if kind == FAILED:
        return f"{'fails' if happens else 'no longer fails'} ({what})"
    return f"{'differs' if happens else 'no longer differs'} in {what}, which no entry lists"


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:  # of a build of somebody's own
        return Version("0")
