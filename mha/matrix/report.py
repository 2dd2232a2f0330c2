"""The outcome of all sets, for a terminal, for a program and as a page in Markdown: a table of releases, the changes
between them, and what the tables of deviations do not say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance.deviations.known import Deviations
from conformance.reports.text import print_lines
from mha.matrix.changes import Change, changes, in_order, where
from mha.matrix.judged import DEVIATION, judge, statuses
from mha.matrix.record import Row
from mha.matrix.request import Request

SCHEMA_VERSION = 1
"""Version of the JSON file; a change that readers would notice raises it."""

HEADERS = ("set", "installed", "equal", "as listed", "other versions", "different", "no answer", "not expressible")
"""The columns of the table of releases."""

COUNTED = ("equal", "deviates", "other version", "different", "failed", "unsupported")
"""The statuses that the columns count, in their order."""

TITLE = "# The suite over releases"

FROM, TO = "<!-- mha matrix: from here -->", "<!-- mha matrix: to here -->"
"""Lines of a page between which the outcome stands."""

EXPLAINED = """\
Each row is one set of releases. The counts are of results: a case on a subject in a dtype, or a probe. *equal*: within
the bound of every element. *as listed*: different just as a table of deviations says of these versions. *other
versions*: different as an entry says, but the entry names other versions. *different*: no entry says it, or one says it
and it does not happen. *no answer*: it raised, crashed or took too long. *not expressible*: the layer has no words for
the case."""


@dataclass
class Report:
    """All sets of a request, those of one backend together, in the order of its releases; and backend -> changes."""

    request: Request
    rows: list[Row]
    changes: dict[str, list[Change]]

    @property
    def different(self) -> bool:
        """Whether anything is not as the tables list it."""
        return any(counts["different"] or counts["other version"] for counts in self._counts)

    @property
    def incomplete(self) -> bool:
        """Whether something that was asked for did not run."""
        return any(counts["failed"] for counts in self._counts) or any(row.problem or row.problems for row in self.rows)

    @property
    def _counts(self) -> list[Counter[str]]:
        return [statuses(row.judged.values()) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        return {
            "schema": SCHEMA_VERSION,
            "cases": list(self.request.cases),
            "dtypes": list(self.request.dtypes),
            "sets": [_row_dict(row) for row in self.rows],
            "changes": {backend: [one.to_dict() for one in found] for backend, found in self.changes.items()},
        }


def make(request: Request, rows: Sequence[Row], known: Deviations) -> Report:
    """Judge every row by the tables, put the releases in order, and compare neighbours."""
    ordered: list[Row] = []
    found: dict[str, list[Change]] = {}
    for backend in dict.fromkeys(row.backend for row in rows):
        own = [row for row in rows if row.backend == backend]
        measured = in_order([row for row in own if not row.problem])
        for row in measured:
            row.judged = judge(row, known)
        ordered += [*measured, *(row for row in own if row.problem)]
        found[backend] = changes(measured)
    return Report(request, ordered, found)


def cells(row: Row) -> tuple[str, ...]:
    """The cells of a row of the table of releases, under HEADERS."""
    if row.problem:
        return (row.name, "could not run", *[""] * len(COUNTED))
    counts = statuses(row.judged.values())
    return (row.name, row.release, *(str(counts[status] or "-") for status in COUNTED))


def finding_lines(row: Row) -> list[str]:
    """What the tables do not say of a release, and what could not be run there: one line each."""
    found = [
        f"{judged.subject}: {text}{where(places)}"
        for judged in row.judged.values()
        for text, places in judged.findings.items()
    ]
    return [*([row.problem] if row.problem else []), *found, *row.lacking, *row.problems]


def change_lines(found: Sequence[Change]) -> list[str]:
    """A line for each change; what changed alike in several layers at once stands in one."""
    together: dict[str, list[str]] = {}
    for change in found:
        together.setdefault(f"{change.text} since {change.since}{where(change.places)}", []).append(change.subject)
    return [f"{', '.join(subjects)}: {text}" for text, subjects in together.items()]


def _row_dict(row: Row) -> dict[str, Any]:
    subjects = {
        name: {
            "counts": dict(judged.counts),
            "deviations": sorted({what for kind, what in judged.facts if kind == DEVIATION}),
        }
        for name, judged in row.judged.items()
    }
    measured = {name: getattr(row, name) for name in ("name", "backend", "problem", "python", "versions")}
    return {**measured, "subjects": subjects, "findings": finding_lines(row)}


def print_report(console: Console, report: Report) -> None:
    """The table, the changes, and what the tables do not say."""
    table = Table(*HEADERS, box=None, header_style="underline", padding=(0, 1, 0, 0))
    for column in table.columns[2:]:
        column.justify = "right"
    for row in report.rows:
        table.add_row(*map(escape, cells(row)), style="yellow" if row.problem else "")
    console.print(table)
    for backend, found in report.changes.items():
        if any(row.backend == backend and not row.problem for row in report.rows):
            console.print(f"\n{backend}: what changed between two releases", style="bold")
            print_lines(console, *(f"  {line}" for line in change_lines(found) or ["nothing"]))
    for row in report.rows:
        print_lines(console, *(f"{row.name}: {line}" for line in finding_lines(row)), style="yellow")


def markdown(report: Report, source: str) -> str:
    """The outcome as part of a page; `source` is the name of the file of sets."""
    cases = ", ".join(f"`{name}`" for name in report.request.cases) or "all"
    changed = [(backend, change_lines(found) or ["nothing"]) for backend, found in report.changes.items()]
    said = [(row.name, own) for row in report.rows if (own := finding_lines(row))]
    rows = [HEADERS, ["---"] * 2 + ["---:"] * (len(HEADERS) - 2), *map(cells, report.rows)]
    parts = [
        [
            f"Written by `mha matrix {source} --markdown FILE`.",
            f"Dtypes: {', '.join(report.request.dtypes)}; cases: {cases}.",
        ],
        [EXPLAINED],
        [f"| {' | '.join(map(_plain, row))} |" for row in rows],
        _items(dict.fromkeys(f"{row.name}: {row.note}" for row in report.rows if row.note)),
        ["### What changed between two releases"],
        *_headed(changed),
        ["### What the tables do not say, or could not be run"],
        *(_headed(said) if said else [["Nothing: all of it is equal, or as listed."]]),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _headed(lists: Iterable[tuple[str, Sequence[str]]]) -> Iterator[list[str]]:
    for heading, texts in lists:
        yield [f"#### {_plain(heading)}"]
        yield _items(texts)


def _items(texts: Iterable[str]) -> list[str]:
    return [f"- {_plain(text)}" for text in texts]


def in_page(page: str, text: str) -> str:
    r"""The page with `text` between its two comments; without these, a new page.

    >>> in_page(f"# Mine\n{FROM}\nold\n{TO}\nand more\n", "new\n")
    '# Mine\n<!-- mha matrix: from here -->\nnew\n<!-- mha matrix: to here -->\nand more\n'
    """
    before, begins, rest = page.partition(f"{FROM}\n")
    _, ends, after = rest.partition(f"{TO}\n")
    if not (begins and ends):
        before, after = f"{TITLE}\n\n", ""
    return f"{before}{FROM}\n{text}{TO}\n{after}"


def _plain(text: str) -> str:
    r"""A text in which Markdown sees no marks of its own.

    >>> _plain("a|b <c> x*y _z_")
    'a\\|b &lt;c&gt; x\\*y \\_z\\_'
    """
    for mark in ("\\", "|", "*", "_", "`"):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;").replace(">", "&gt;")
