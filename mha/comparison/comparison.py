"""Pair and Comparison: the result of comparing two recordings, call by call and as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mha.comparison.arrays import PARTS, Difference
from mha.comparison.ends import EndPair
from mha.undetectable_bugs.find import UndetectableBugs

SCHEMA_VERSION = 1
"""Version of the JSON report's format."""


@dataclass(frozen=True)
class Pair:
    """One call of the original beside one of the port.

    Attributes:
        original, port: the names of the calls.
        dtypes: the dtypes in which they computed.
        differences: every difference, in the order of PARTS.
        notes: remarks about things that do not count as differences.
        inputs: the difference / allowed difference of their inputs; None where these can't be compared.
        own: the worst error / allowed error of the original's outputs, and of the port's, each by its own inputs,
            mask and weights.
        distance, allowed: the difference of the outputs and the allowed difference, where their ratio is largest.
            Allowed are both bounds, and the effect of inputs that differ within their allowance. None where the
            inputs can't be compared.
    """

    original: str
    port: str
    dtypes: tuple[str, str]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    inputs: float | None
    own: tuple[float, float]
    distance: float | None = None
    allowed: float | None = None

    @property
    def name(self) -> str:
        """The names of both calls, or their common name."""
        return self.original if self.original == self.port else f"{self.original} (the port's {self.port})"

    @property
    def causes(self) -> tuple[Difference, ...]:
        """The differences that are not consequences of earlier ones."""
        return tuple(difference for difference in self.differences if not difference.follows)

    def state(self, part: str) -> str:
        """The state of one of PARTS: "equal", "different", "follows", or "not compared"."""
        of_part = [difference for difference in self.differences if difference.part == part]
        if any(not difference.follows for difference in of_part):
            return "different"
        if of_part:
            return "follows"
        return "not compared" if self.inputs is None and part in ("mask", "past") else "equal"

    def to_dict(self) -> dict[str, Any]:
        """The pair as a dict of JSON values."""
        return {**asdict(self), "states": {part: self.state(part) for part in PARTS}}


@dataclass(frozen=True)
class Comparison:
    """Two recordings, or a recording and a live run, call by call.

    Attributes:
        by: how the calls were paired: "name" or "order".
        pairs: in the order of the original's calls.
        unpaired: a line for each side that has calls without a partner.
        notes: remarks about the pairing and both recordings.
        findings: the differences in words, the earliest first.
        failed: call -> why a live subject gave no answer, or one of another form.
        unseen: which bugs the port's calls would not have shown; None if they were not looked for.
        ends: what the models gave, and modules of them, in the order of the original's.
        unjudged: sentences on what of that was not compared.
    """

    by: str
    pairs: tuple[Pair, ...]
    unpaired: tuple[str, ...]
    notes: tuple[str, ...]
    findings: tuple[str, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    unseen: UndetectableBugs | None = None
    ends: tuple[EndPair, ...] = ()
    unjudged: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether every call has a partner, and neither a pair of calls nor one of ends has a difference."""
        return not (self.different or self.failed)

    @property
    def different(self) -> bool:
        """Whether a difference was found; a subject that gave no answer is neither equal nor different."""
        return bool(self.unpaired) or any(pair.differences for pair in self.pairs) or any(e.message for e in self.ends)

    @property
    def first(self) -> tuple[Pair, Difference] | None:
        """The first pair with a difference, and its first difference; None if there is none."""
        return next(((pair, pair.differences[0]) for pair in self.pairs if pair.differences), None)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as a dict of JSON values."""
        first = None
        if self.first is not None:
            pair, difference = self.first
            first = {"original": pair.original, "port": pair.port, "part": difference.part, "name": difference.name}
        return {
            **{own.name: getattr(self, own.name) for own in fields(self)},
            "schema": SCHEMA_VERSION,
            "equal": self.equal,
            "first": first,
            "failed": dict(self.failed),
            "pairs": [pair.to_dict() for pair in self.pairs],
            "ends": [asdict(end) for end in self.ends],
            "unseen": None if self.unseen is None else self.unseen.to_dict(),
        }
