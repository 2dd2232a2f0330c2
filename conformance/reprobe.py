"""Run the listed deviations with the installed packages, and report which of them still happen."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from conformance.cases.table import select_asked
from conformance.deviations.entry import Deviation
from conformance.judging.compare import Mismatch
from conformance.judging.result import Result
from conformance.runner import run_case
from conformance.subjects.ask import place
from conformance.subjects.load import load_subject
from mha_core import SpecError
from mha_core.errors import one_line

Outcome = Literal["happens", "gone", "not here", "not installed", "other version", "failed"]
"""The outcome of an entry.

- "happens": it was seen.
- "gone": it was not seen, although it should have been.
- "not here": it was not seen, and need not be, because the entry has an `only_where`.
- "not installed": a package that it is about is missing.
- "other version": a package that it is about is installed in a version that the entry does not name.
- "failed": the probe or the case could not be run.
"""


@dataclass(frozen=True)
class Finding:
    """The outcome of one entry; `seen` is what was seen in words, or the reason why it was not."""

    entry: Deviation
    outcome: Outcome
    seen: str

    def to_dict(self) -> dict[str, Any]:
        """The finding as a dict of JSON values."""
        return {**self.entry.to_dict(), "outcome": self.outcome, "seen": self.seen}


def probe_all(entries: Iterable[Deviation]) -> Iterator[Finding]:
    """Yield a Finding for each entry. Each case runs once, even if several entries list it."""
    results: dict[tuple[str, str, str], Result] = {}
    for entry in entries:
        yield _probe(entry, results)


def _probe(entry: Deviation, results: dict[tuple[str, str, str], Result]) -> Finding:
    absent = entry.why_not_here()
    if absent:
        outcome: Outcome = "not installed" if absent.startswith("not installed") else "other version"
        return Finding(entry, outcome, absent.partition(": ")[2])
    try:
        finding = _by_function(entry) if entry.probe else _by_cases(entry, results)
        if finding.outcome == "gone" and entry.only_where:
            return Finding(entry, "not here", f"happens only where {entry.only_where}")
        return finding
    except (Exception, SystemExit) as error:  # whatever a framework raises: the other entries are probed all the same
        return Finding(entry, "failed", str(error) if isinstance(error, SpecError) else one_line(error) + place(error))


def _by_function(entry: Deviation) -> Finding:
    module, _, name = entry.probe.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"there is no probe {entry.probe}: {error}") from error
    seen = function()
    if seen is not None and not (isinstance(seen, str) and seen):
        raise SpecError(f"probe {entry.probe} returned {seen!r}; it must return a sentence, or None")
    return Finding(entry, "gone", f"{entry.probe} does not see it") if seen is None else Finding(entry, "happens", seen)


def _by_cases(entry: Deviation, results: dict[tuple[str, str, str], Result]) -> Finding:
    """Run every case of an entry in its first dtype, as `mha check` does in all dtypes."""
    dtype = entry.dtypes[0]
    subject = load_subject(entry.subject, dtype)
    seen: dict[str, Mismatch] = {}
    for case in select_asked(entry.cases):
        key = (entry.subject, dtype, case.id)
        if key not in results:
            results[key] = run_case(case, subject)
        result = results[key]
        if result.status == "failed":
            raise SpecError(f"case {case.id} did not run: {result.message}")
        covered = [mismatch for mismatch in result.mismatches if entry.covers(mismatch.stage)]
        if covered:
            seen[case.id] = covered[0]
    gone = [case for case in entry.cases if case not in seen]
    if gone:
        return Finding(entry, "gone", f"not in {', '.join(gone)}, {dtype}")
    case_id, mismatch = next(iter(seen.items()))
    return Finding(entry, "happens", f"{case_id}, {dtype}: {mismatch.message}")
