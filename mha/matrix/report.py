"""The outcome of all sets: a table of releases, the changes between them, and what the tables do not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance.deviations.known import Deviations
from mha.matrix.changes import Change, changes, in_order
from mha.matrix.judged import Judged, judge, statuses
from mha.matrix.record import Record
from mha.matrix.request import Request

SCHEMA_VERSION = 1
"""Version of the JSON file; a change that readers would notice raises it."""

HEADERS = ("set", "installed", "equal", "as listed", "other versions", "different", "no answer", "not expressible")
"""The columns of the table of releases."""

COUNTED = ("equal", "deviates", "other version", "different", "failed", "unsupported")
"""The statuses that the columns count, in their order."""


@dataclass
class Row:
    """One backend in one set: its record and what it says; or, in `problem`, why there is none."""

    name: str
    backend: str
    note: str = ""
    record: Record | None = None
    judged: Mapping[str, Judged] = field(default_factory=dict)
    problem: str = ""


@dataclass
class Report:
    """All sets of a request, those of one backend together, in the order of its releases."""

    request: Request
    rows: list[Row]
    changes: dict[str, list[Change]]

    @property
    def different(self) -> bool:
        """Whether anything is not as the tables list it."""
        counts = statuses(judged for row in self.rows for judged in row.judged.values())
        return bool(counts["different"] or counts["other version"])

    @property
    def incomplete(self) -> bool:
        """Whether something that was asked for did not run."""
        counts = statuses(judged for row in self.rows for judged in row.judged.values())
        return bool(counts["failed"]) or any(
            row.problem or (row.record is not None and row.record.problems) for row in self.rows
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        return {
            "schema": SCHEMA_VERSION,
            "cases": list(self.request.cases),
            "dtypes": list(self.request.dtypes),
            "sets": [_row_dict(row) for row in self.rows],
            "changes": {
                backend: [
                    {"subject": one.subject, "what": one.text, "before": one.before, "since": one.since}
                    | {"places": [list(place) for place in one.places]}
                    for one in found
                ]
                for backend, found in self.changes.items()
            },
        }


def make(request: Request, rows: Sequence[Row], known: Deviations) -> Report:
    """Judge every record by the tables, put the releases in order, and compare neighbours."""
    ordered: list[Row] = []
    found: dict[str, list[Change]] = {}
    for backend in dict.fromkeys(row.backend for row in rows):
        own = [row for row in rows if row.backend == backend]
        for row in own:
            if row.record is not None:
                row.judged = judge(row.record, known)
        measured = {id(row.record): row for row in own if row.record is not None}
        sorted_records = in_order([row.record for row in own if row.record is not None])
        in_turn = [measured[id(record)] for record in sorted_records]
        ordered += [*in_turn, *(row for row in own if row.record is None)]
        found[backend] = changes([(row.record, row.judged) for row in in_turn if row.record is not None])
    return Report(request, ordered, found)


def cells(row: Row) -> tuple[str, ...]:
    """The cells of a row of the table of releases, under HEADERS."""
    if row.record is None:
        return (row.name, "could not run", *[""] * len(COUNTED))
    counts = statuses(row.judged.values())
    return (row.name, row.record.release, *(str(counts[status] or "-") for status in COUNTED))


def finding_lines(row: Row) -> list[str]:
    """What the tables do not say of a release, and what could not be run there: one line each."""
    if row.record is None:
        return [row.problem]
    found = []
    for judged in row.judged.values():
        for text, places in judged.findings.items():
            where = Change(judged.subject, "", "", "", tuple(sorted(places))).where
            found.append(f"{judged.subject}: {text}{where}")
    return [*found, *row.record.lacking, *row.record.problems]


def _row_dict(row: Row) -> dict[str, Any]:
    record = row.record
    return {
        "name": row.name,
        "backend": row.backend,
        "problem": row.problem,
        "python": "" if record is None else record.python,
        "versions": {} if record is None else record.versions,
        "subjects": {
            name: {
                "counts": dict(judged.counts),
                "deviations": sorted({what for kind, what in judged.facts if kind == "deviation"}),
            }
            for name, judged in row.judged.items()
        },
        "findings": finding_lines(row),
    }
