"""What a comparison of two recordings found: call by call, and as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mha.comparison.arrays import PARTS, Difference
from mha.recordings.unseen import Unseen

SCHEMA_VERSION = 1
"""Of the JSON report."""


@dataclass(frozen=True)
class Pair:
    """One call of the original beside one of the port.

    Attributes:
        original, port: what the calls are called.
        dtypes: in which they computed.
        differences: everything in which they part, in the order of PARTS.
        notes: what is to be said though it is no difference.
        inputs: the difference of what they were given over what is allowed; None where it can't be compared.
        own: the worst error / allowed error of the original's outputs, and of the port's, each by its own inputs,
            mask and weights.
        distance, allowed: the largest difference of the outputs, relative to what is allowed there; and what is
            allowed: both bounds, and what inputs that differ within their allowance make of it. None as above.
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
        """Both names, or the one that both have."""
        return self.original if self.original == self.port else f"{self.original} (the port's {self.port})"

    @property
    def causes(self) -> tuple[Difference, ...]:
        """The differences that no earlier one leads to."""
        return tuple(difference for difference in self.differences if not difference.follows)

    def state(self, part: str) -> str:
        """Of one of PARTS: "equal", "different", "follows", or "not compared"."""
        of_part = [difference for difference in self.differences if difference.part == part]
        if any(not difference.follows for difference in of_part):
            return "different"
        if of_part:
            return "follows"
        return "not compared" if self.inputs is None and part in ("mask", "past") else "equal"

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        return {**asdict(self), "states": {part: self.state(part) for part in PARTS}}


@dataclass(frozen=True)
class Comparison:
    """Two recordings, or a recording and a live run, call by call.

    Attributes:
        by: how the calls were paired: "name" or "order".
        pairs: in the order of the original's calls.
        unpaired: a line for each side that has calls without a partner.
        notes: what is to be said of the pairing and of both recordings.
        findings: in words, the first thing in which they part first.
        failed: call -> why a live subject gave no answer, or one of another form.
        unseen: which bugs the port's calls would not have shown; None if that was not asked.
    """

    by: str
    pairs: tuple[Pair, ...]
    unpaired: tuple[str, ...]
    notes: tuple[str, ...]
    findings: tuple[str, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    unseen: Unseen | None = None

    @property
    def equal(self) -> bool:
        """Whether every call has a partner, and no two part in anything."""
        return not (self.unpaired or self.failed) and not any(pair.differences for pair in self.pairs)

    @property
    def different(self) -> bool:
        """Whether something was found that parts; a subject that gave no answer is neither equal nor different."""
        return bool(self.unpaired) or any(pair.differences for pair in self.pairs)

    @property
    def first(self) -> tuple[Pair, Difference] | None:
        """The first pair that parts, and the first thing in which it does."""
        return next(((pair, pair.differences[0]) for pair in self.pairs if pair.differences), None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        first = None
        if self.first is not None:
            pair, difference = self.first
            first = {"original": pair.original, "port": pair.port, "part": difference.part, "name": difference.name}
        return {
            "schema": SCHEMA_VERSION,
            "equal": self.equal,
            "first": first,
            "by": self.by,
            "findings": list(self.findings),
            "notes": list(self.notes),
            "unpaired": list(self.unpaired),
            "failed": dict(self.failed),
            "pairs": [pair.to_dict() for pair in self.pairs],
            "unseen": None if self.unseen is None else self.unseen.to_dict(),
        }
