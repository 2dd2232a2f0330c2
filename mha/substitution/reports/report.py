"""WhereReport: what `mha.where` found, a result for each module of the port."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mha.substitution.mutants.unseen import Unseen

Status = Literal["equal", "wrong", "through its parts", "divided otherwise", "not judged"]

Allowance = Literal["derived", "calibrated", ""]

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Backward:
    """The gradients of a module, of its inputs and parameters.

    Attributes:
        status: as that of a module.
        ratio: the worst error over the measured rounding, of all its calls; None if not judged.
        place, index, got, expected: the gradient that is worst, and the element and numbers there.
        reason: why they were not judged.
        compared: how many gradients were, of all its calls.
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
    """One module of the port.

    Attributes:
        name, kind: where it stands in the port, and its class.
        depth: how many modules stand around it.
        original, how: the name of its original's module, and how the pair was found; None for a module without one.
        status: "wrong" if it is wrong by itself or in its own lines; "through its parts" if only modules inside it are;
            "divided otherwise" if it gives something else and is right with the lines around it.
        ratio: its worst error over the measured rounding, of all its calls, of which 8 are allowed; None if not judged.
            Where a number is beyond its derived bound, at least 8 times its error over that.
        allowance: "derived" if all that it gave must lie within derived bounds too; "" if not judged.
        bound: the worst error over its derived bound, of which 1 is allowed; None without one.
        rounding: the measured rounding as a fraction of what it gives.
        place, index: the array and the element that are worst.
        got, expected: the numbers there.
        reason: why it was not judged, or what else is to be said.
        parameters: whether it has some, and whether they are the original's: "same", "other" or "".
        parameters_of: if they are another's, the name of the original's module that has them.
        own_lines: whether it is wrong with right parts, so in its own lines.
        unpaired: the modules inside whose lines count as its own, because they have no original.
        padding: how many rows of an equal module are not counted and differ: of padding, of which it was seen that no
            other row depends on them, and of queries without a key.
        uncompared: what it gives of which nothing of the original's is known to be it; and integers that are others.
        backward: the verdict on its gradients; None if none were recorded.
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
    parameters_of: str = ""
    own_lines: bool = False
    unpaired: tuple[str, ...] = ()
    padding: int = 0
    uncompared: tuple[str, ...] = ()
    backward: Backward | None = None

    @property
    def wrong_backward(self) -> bool:
        """Whether its gradients are wrong, and not through those of modules inside it."""
        return self.backward is not None and self.backward.status == "wrong"


@dataclass(frozen=True)
class WhereReport:
    """What `where` found: a result for each module of the port that was called, in the order of the calls.

    Attributes:
        results: one for each module.
        uncovered: modules with parameters of their own that nothing but the whole model judges.
        dtype: the port's.
        versions: package -> version, of the port's recording.
        pairs: name of the original's module -> that of the port's.
        unseen: the bugs that an equal module could have without being wrong on these inputs.
        diagnosed: name of a wrong module -> what its attention shows as a layer, by its own weights.
    """

    results: tuple[ModuleResult, ...]
    uncovered: tuple[str, ...]
    dtype: str
    versions: Mapping[str, str]
    pairs: Mapping[str, str] = field(default_factory=dict)
    unseen: tuple[Unseen, ...] = ()
    diagnosed: Mapping[str, str] = field(default_factory=dict)

    @property
    def wrong(self) -> tuple[str, ...]:
        """Names of the modules that are wrong by themselves, forward or backward; "" is the model itself."""
        return tuple(one.name for one in self.results if one.status == "wrong" or one.wrong_backward)

    @property
    def judged(self) -> tuple[str, ...]:
        """Names of the modules that were judged."""
        return tuple(one.name for one in self.results if one.status != "not judged")

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Names of the modules that were not judged."""
        return tuple(one.name for one in self.results if one.status == "not judged")

    @property
    def equal(self) -> bool:
        """Whether the model, all that it gives, and every module with parameters were judged, and none is wrong.

        What stands between the modules is judged by the model itself.
        """
        whole = self.results[0].status != "not judged" and not self.results[0].uncompared and not self.uncovered
        passed = ("equal", "divided otherwise", "not judged")
        backward = [one.backward.status for one in self.results if one.backward is not None]
        if backward and (self.results[0].backward is None or self.results[0].backward.status != "equal"):
            return False
        return whole and all(status in passed for status in (*(one.status for one in self.results), *backward))

    def to_dict(self) -> dict[str, Any]:
        """The report as a dict of JSON values."""
        return {
            "schema": SCHEMA_VERSION,
            "equal": self.equal,
            "wrong": list(self.wrong),
            "uncovered": list(self.uncovered),
            "dtype": self.dtype,
            "versions": dict(self.versions),
            "unseen": [asdict(one) for one in self.unseen],
            "diagnosed": dict(self.diagnosed),
            "modules": [asdict(one) for one in self.results],
        }
