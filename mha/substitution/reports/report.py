"""WhereReport: what `mha.where` found, a result for each module of the port."""

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
    """A difference between two recorded calls.

    Attributes:
        part: what differs, one of PARTS, such as "mask".
        message: the difference in words.
        name: name of the array or the setting: "queries", "q_proj.weight", "num_heads"; "" for the whole part.
        difference: the largest difference of numbers; None if no numbers were compared.
        allowed: the allowed difference of the same element; None if no numbers were compared.
        moves: the largest change of the original's output by this difference alone, computed with the reference; None
            if that can't be computed.
        shows: whether `moves` exceeds the allowed error.
        follows: whether this difference is a consequence of an earlier one.
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
    """A verdict on the gradients of a module with respect to its inputs and parameters.

    Attributes:
        status: as in ModuleResult.
        ratio: the largest error / measured rounding error in all its calls; None if not judged.
        place, index: the name of the gradient with that error, and the index of the element.
        got, expected: the value of this element in the port, and in the original.
        reason: why the gradients were not judged; else "".
        compared: the number of compared gradients, over all its calls.
        left: gradients that were not compared, in words.
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
        name, kind: its name in the port, and its class.
        depth: the number of modules around it.
        original: the name of the original's module; None for a module without one.
        how: how the pair was found; for a wrong module without an original, where its mistake was seen.
        original_kind: the class of the original's module; "" without one.
        status: "equal", "not judged", or one of these. "wrong": it is wrong by itself, or in its own lines (its code
            between the modules inside it). "through its parts": only modules inside it are wrong. "divided otherwise":
            its outputs differ, but the code around it compensates for that. "caused upstream": it differs only because
            its inputs do (with a live original, only because its mask does).
        ratio: the largest error / measured rounding error in all its calls (8 is allowed); None if not judged. If a
            number exceeds its derived bound, the ratio is at least 8 * error / bound.
        allowance: "derived" if every output also has a derived bound, else "calibrated"; "" if not judged.
        bound: the worst error / derived bound (1 is allowed); None without a bound. For two recordings, the worst
            difference / allowed difference.
        rounding: the measured rounding error of the output / the output.
        place, index: the name of the worst array, and the index of its worst element.
        got, expected: the value of that element in the port, and in the original.
        reason: why it was not judged, or another remark; else "".
        parameters: "same" if they are the original's, "other" if not, "" if there are none to compare. For a wrong
            module also "reordered" (the original's numbers in another order), or "unseen" (the original's numbers, but
            the order that is meant is not known).
        order: for "reordered", which parameters are in which order; for "other", which ones differ, if not all do.
        parameters_of: the name of the original's module with these parameters, if it is not `original`; else "".
        own_lines: whether its own lines are wrong: it is wrong even with right outputs of the modules inside it.
        unpaired: names of the modules inside it that have no original; their code counts as its own lines.
        among: names of modules inside it, some of which are wrong, if it is not known which; else ().
        padding: for an equal module, how many rows differ but don't count: padding that no other row depends on, and
            fully masked queries.
        uncompared: names of outputs that the original does not have, and of integer outputs that differ.
        backward: the verdict on its gradients; None if no gradients were recorded.
        differences: for two recordings, every difference of the call from the original's, in the order of PARTS.
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
        """Return whether the module's own gradients are wrong, and not only those of modules inside it."""
        return self.backward is not None and self.backward.status == "wrong"


@dataclass(frozen=True)
class WhereReport:
    """A report by `where`: a result for each module of the port that was called, in the order of the calls.

    Attributes:
        uncovered: names of modules whose own parameters no verdict covers, except that on the whole model.
        dtype: the port's dtype.
        versions: package -> version, from the port's recording.
        pairs: name of the original's module -> name of the port's.
        unseen: with a live original, the bugs that equal modules may have without a visible effect on these inputs.
        diagnosed: name of a wrong module -> the diagnosis of its attention, judged as a layer with its own weights.
        original: what the port was compared with: the live "model", or a "recording" of it. With a recording, `results`
            has a row for each call of an attention layer, or for each module if both recordings hold modules.
        notes: sentences on what was not recorded, on how two recordings were paired, and on what was not compared.
        undetectable: with two recordings, known attention bugs that the port's calls can't show; None if not searched.
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
        """Return the names of the modules that are wrong themselves, forward or backward; "" is the model itself."""
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
        """Return (the first call that differs between two recordings, its first Difference); None if none does."""
        return next(((one, one.differences[0]) for one in self.results if one.differences), None)

    @property
    def is_no_port(self) -> bool:
        """Return whether the port seems to belong to another model than this original.

        That is so if the whole model differs, and no module inside it was judged or has the original's parameters.
        """
        inner = self.results[1:]
        known = any(one.status != "not judged" or one.parameters == "same" for one in inner)
        return self.original == "model" and bool(inner) and not known and self.results[0].status != "equal"

    @property
    def equal(self) -> bool:
        """Return whether all outputs of the model were judged, and no module is wrong.

        The verdict on the whole model also covers modules without a verdict of their own. With two recordings it does
        not, because larger differences are allowed in the model's outputs.
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
