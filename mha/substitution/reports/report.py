"""WhereReport: what `mha.where` found, a result for each module of the port."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mha.substitution.mutants.unseen import Unseen
from mha.undetectable_bugs.find import UndetectableBugs

Status = Literal["equal", "wrong", "through its parts", "divided otherwise", "caused upstream", "not judged"]

Allowance = Literal["derived", "calibrated", ""]

SCHEMA_VERSION = 1

PARTS = ("inputs", "mask", "past", "config", "weights", "outputs")
"""Parts of a call in which two recorded calls can differ, in the order of the report."""


@dataclass(frozen=True)
class Difference:
    """One difference between two recorded calls.

    Attributes:
        part: one of PARTS.
        message: in words.
        name: name of the array or the setting: "queries", "q_proj.weight", "num_heads"; "" for the whole part.
        difference: the largest difference, where numbers were compared; else None.
        allowed: the difference that was allowed there.
        moves: how far it alone moves the original's output, in the reference; None where that can't be computed.
        shows: True if it moves the output beyond what is allowed.
        follows: True if it is a consequence of an earlier difference.
    """

    part: str
    message: str
    name: str = ""
    difference: float | None = None
    allowed: float | None = None
    moves: float | None = None
    shows: bool = False
    follows: bool = False


@dataclass(frozen=True)
class Backward:
    """A verdict on the gradients of a module: those of its inputs and parameters.

    Attributes:
        status: one of the words that a module's status has.
        ratio: the worst error of all its calls, in units of the measured rounding; None if not judged.
        place, index, got, expected: the worst gradient, its worst element, and the two numbers there.
        reason: why they were not judged.
        compared: how many gradients were compared, over all its calls.
        left: what was not compared.
    """

    status: Status
    ratio: float | None = None
    place: str = ""
    index: tuple[int, ...] = ()
    got: float | None = None
    expected: float | None = None
    reason: str = ""
    compared: int = 0
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModuleResult:
    """A verdict on one module of the port.

    Attributes:
        name, kind: where it stands in the port, and its class.
        depth: how many modules stand around it.
        original, how: the name of its original's module, and how the pair was found. None for a module without one; if
            it is wrong all the same, `how` says where that was seen.
        original_kind: the class of the original's module; "" without one.
        status: "wrong" if it is wrong by itself or in its own lines; "through its parts" if only modules inside it are;
            "divided otherwise" if it gives something else and is right with the lines around it; of two recordings,
            "caused upstream" if it was given something else, and does not differ by itself.
        ratio: its worst error of all calls, in units of the measured rounding (8 are allowed); None if not judged.
            Where a number is beyond its derived bound, at least 8 times error / bound.
        allowance: "derived" if every output must lie within a derived bound too, else "calibrated"; "" if not judged.
        bound: the worst error / derived bound (1 is allowed); None without a bound. Of two recordings, the worst
            difference / allowed difference.
        rounding: the measured rounding as a fraction of what it gives.
        place, index: the array and the element that are worst.
        got, expected: the numbers there.
        reason: why it was not judged, or what else is to be said.
        parameters: "same" if they are the original's, "other" if not, "" if there are none to compare. Of a wrong
            module also "reordered" (the original's numbers in another order) or "unseen" (in an unknown order).
        order: for "reordered", which parameters are in which order; for "other", which ones differ, if not all do.
        parameters_of: the name of the original's module that has these parameters, if it is another module.
        own_lines: whether it is wrong even with right parts, so that its own lines are wrong.
        unpaired: the modules inside that have no original: their lines count as its own.
        among: parts of which at least one is wrong, if this module is named because it is not known which.
        padding: of an equal module, how many rows differ and are not counted: rows of padding on which no other row was
            seen to depend, and rows of queries without a key.
        uncompared: outputs for which no counterpart in the original is known; and integers that differ.
        backward: the verdict on its gradients; None if none were recorded.
        differences: of two recordings, every difference of the call from the original's, in the order of PARTS.
    """

    name: str
    kind: str
    depth: int
    original: str | None
    how: str
    status: Status
    ratio: float | None = None
    allowance: Allowance = ""
    bound: float | None = None
    rounding: float | None = None
    place: str = ""
    index: tuple[int, ...] = ()
    got: float | None = None
    expected: float | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()
    parameters: str = ""
    order: str = ""
    parameters_of: str = ""
    own_lines: bool = False
    unpaired: tuple[str, ...] = ()
    among: tuple[str, ...] = ()
    padding: int = 0
    uncompared: tuple[str, ...] = ()
    backward: Backward | None = None
    differences: tuple[Difference, ...] = ()
    original_kind: str = ""

    @property
    def causes(self) -> tuple[Difference, ...]:
        """Return the differences that do not follow from earlier ones."""
        return tuple(one for one in self.differences if not one.follows)

    @property
    def wrong_backward(self) -> bool:
        """Return whether its gradients are wrong by themselves, and not only because of modules inside it."""
        return self.backward is not None and self.backward.status == "wrong"


@dataclass(frozen=True)
class WhereReport:
    """A report of what `where` found: a result for each module of the port that was called, in the order of the calls.

    Attributes:
        results: one for each module.
        uncovered: modules with parameters of their own that nothing but the whole model judges.
        dtype: the port's.
        versions: package -> version, of the port's recording.
        pairs: name of the original's module -> that of the port's.
        unseen: the bugs that an equal module could have without being wrong on these inputs.
        diagnosed: name of a wrong module -> what its attention shows as a layer, by its own weights.
        original: what the port was compared with: the live "model", or a "recording" of it. Of a recording, `results`
            has a row for each call of an attention layer, or for each module if both recordings hold modules.
        notes: sentences on what was not recorded; on the pairs of two recordings, and on what could not be compared.
        undetectable: the bugs of the zoo that the port's calls of attention layers would not have shown; None if they
            were not looked for.
    """

    results: tuple[ModuleResult, ...]
    uncovered: tuple[str, ...]
    dtype: str
    versions: Mapping[str, str]
    pairs: Mapping[str, str] = field(default_factory=dict)
    unseen: tuple[Unseen, ...] = ()
    diagnosed: Mapping[str, str] = field(default_factory=dict)
    original: Literal["model", "recording"] = "model"
    notes: tuple[str, ...] = ()
    undetectable: UndetectableBugs | None = None

    @property
    def wrong(self) -> tuple[str, ...]:
        """Return the names of the modules that are wrong by themselves, forward or backward; "" is the model itself."""
        return tuple(one.name for one in self.results if one.status == "wrong" or one.wrong_backward)

    @property
    def judged(self) -> tuple[str, ...]:
        """Return the names of the modules that were judged."""
        return tuple(one.name for one in self.results if one.status != "not judged")

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Return the names of the modules that were not judged."""
        return tuple(one.name for one in self.results if one.status == "not judged")

    @property
    def first(self) -> tuple[ModuleResult, Difference] | None:
        """Return the first call of two recordings that differs, and its first difference; None if there is none."""
        return next(((one, one.differences[0]) for one in self.results if one.differences), None)

    @property
    def is_no_port(self) -> bool:
        """Return whether the model is not equal, and no module inside was judged or has the original's parameters."""
        inner = self.results[1:]
        known = any(one.status != "not judged" or one.parameters == "same" for one in inner)
        return self.original == "model" and bool(inner) and not known and self.results[0].status != "equal"

    @property
    def equal(self) -> bool:
        """Return whether the model and all that it gives were judged, and no module is wrong.

        The verdict on the whole model covers the lines between modules, and modules that nothing else judges. Of two
        recordings it does not cover such modules, since the allowance at the model's end is wider.
        """
        model = self.results[0]
        covered = not self.uncovered or (self.original == "model" and model.status == "equal")
        whole = model.status != "not judged" and not model.uncompared and covered
        passed = ("equal", "divided otherwise", "not judged")
        backward = [one.backward.status for one in self.results if one.backward is not None]
        if backward and (self.results[0].backward is None or self.results[0].backward.status != "equal"):
            return False
        return whole and all(status in passed for status in (*(one.status for one in self.results), *backward))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict of JSON values."""
        return {
            "schema": SCHEMA_VERSION,
            "equal": self.equal,
            "wrong": list(self.wrong),
            "uncovered": list(self.uncovered),
            "dtype": self.dtype,
            "versions": dict(self.versions),
            "unseen": [asdict(one) for one in self.unseen],
            "diagnosed": dict(self.diagnosed),
            "original": self.original,
            "notes": list(self.notes),
            "undetectable": None if self.undetectable is None else self.undetectable.to_dict(),
            "modules": [asdict(one) for one in self.results],
        }
