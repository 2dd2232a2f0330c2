"""Report: what was asked of a model, and what did not hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mha.invariance.allowance import Allowance, Apart
from mha.invariance.trial import Size

SCHEMA_VERSION = 1
"""Version of the JSON file."""

Status = Literal["holds", "broken", "known", "not asked"]


@dataclass(frozen=True)
class Result:
    """A result of testing one relation (two calls that should give the same numbers) on a model.

    Attributes:
        id, group, sentence: the relation.
        status: the verdict; "known" if the relation is broken in a way that the table of known deviations lists.
        reason: why the relation was not tested, or the id of the known deviation; else "".
        apart: how far the results of the two calls are apart; None if no call was made.
        size: the size of the smallest inputs that break the relation; if it holds, the size of the whole inputs.
        code: the two calls as code to paste; "" if the relation holds.
        seconds: duration of the test.
    """

    id: str
    group: str
    sentence: str
    status: Status
    reason: str = ""
    apart: Apart | None = None
    size: Size | None = None
    code: str = ""
    seconds: float = 0.0

    @property
    def by(self) -> str:
        """Return in words by how much the relation is broken; "" if it was not tested."""
        one, size = self.apart, self.size
        if one is None or size is None:
            return ""
        where = f"batch {size.batch}, length {size.length}" + (f", chunks of {size.chunk}" if size.chunk else "")
        off = "not finite in one of the two" if np.isinf(one.error) else f"off by {one.error:.3g}"
        numbers = f"{one.first:.6g} and {one.second:.6g} at {list(one.index)}"
        return f"{off}, allowed {one.allowed:.2g} ({numbers}); {where}"

    def to_dict(self) -> dict[str, Any]:
        """Return this as a dict of JSON values."""
        one, size = self.apart, self.size
        return {
            "id": self.id, "group": self.group, "sentence": self.sentence, "status": self.status,
            "reason": self.reason,
            "error": None if one is None or not np.isfinite(one.error) else one.error,
            "allowed": None if one is None else one.allowed,
            "index": [] if one is None else list(one.index),
            "batch": None if size is None else size.batch,
            "length": None if size is None else size.length,
            "chunk": None if size is None or not size.chunk else size.chunk,
            "code": self.code, "seconds": round(self.seconds, 3),
        }  # fmt: skip


@dataclass(frozen=True)
class Report:
    """A report of all relations that were tested on a model.

    Attributes:
        name: the model's class.
        framework: the framework of the arrays that the model was given.
        results: one for each relation, in the order of `mha.invariance.run.table`.
        allowance: how far apart the results of two calls may be.
        found: lines on what was found out about the model, such as its masks and its cache.
    """

    name: str
    framework: str
    results: Sequence[Result]
    allowance: Allowance
    found: Sequence[str]

    def of(self, status: Status) -> list[Result]:
        """Return the results of one status."""
        return [one for one in self.results if one.status == status]

    @property
    def holds(self) -> bool:
        """Return whether some relation was tested, and none is broken."""
        return bool(self.of("holds")) and not self.of("broken")

    def assert_holds(self) -> None:
        """Raise AssertionError, with the report, if a relation is broken or no relation could be tested."""
        if not self.holds:
            raise AssertionError("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Return lines on relations: broken ones with code, known deviations, those that hold, and untested ones."""
        broken, held, known = self.of("broken"), self.of("holds"), self.of("known")
        said = [f"{self.name} ({self.framework}; {'; '.join(self.found)})", f"Allowed: {self.allowance.said}"]
        shown: set[str] = set()
        for one in broken:
            said += ["", f"BROKEN {one.id}: {one.sentence}", f"  {one.by}"]
            if one.group not in shown:  # one is enough to begin with; the file of --json has all
                said += [f"    {line}" for line in one.code.splitlines()]
            shown.add(one.group)
        said += [""] if broken else []
        said += [f"Known, {one.reason}: {one.sentence} ({one.id}, {one.by})" for one in known]
        said += [f"Hold ({len(held)}): {', '.join(one.id for one in held)}"] if held else []
        said += [f"Not asked: {', '.join(ids)}: {reason}" for reason, ids in self._by_reason().items()]
        if broken:
            said.append(f"{len(broken)} of {len(broken) + len(held) + len(known)} relations are broken.")
        elif held:
            said.append(f"All {len(held)} relations that were asked hold.")
        else:
            said.append("Nothing could be asked.")
        return said

    def _by_reason(self) -> dict[str, list[str]]:
        """Reason -> what was not asked for it; a group of which nothing was asked, by its name."""
        found: dict[str, list[str]] = {}
        for one in self.of("not asked"):
            found.setdefault(one.reason, []).append(one.id)
        groups = {one.group: [other.id for other in self.results if other.group == one.group] for one in self.results}
        for ids in found.values():
            for group, own in groups.items():
                if len(own) > 1 and set(own) <= set(ids):
                    ids[:] = [f"all of {group}", *(one for one in ids if one not in own)]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict of JSON values."""
        return {
            "schema": SCHEMA_VERSION, "name": self.name, "framework": self.framework, "found": list(self.found),
            "dtype": self.allowance.dtype, "allowed": self.allowance.of(1.0), "holds": self.holds,
            "results": [one.to_dict() for one in self.results],
        }  # fmt: skip
