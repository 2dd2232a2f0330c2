"""The report as text: for a terminal, and as a page in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mha.matrix.changes import Change
from mha.matrix.report import HEADERS, Report, cells, finding_lines

TITLE = "# The suite over releases"

FROM, TO = "<!-- mha matrix: from here -->", "<!-- mha matrix: to here -->"
"""Lines of a page between which the outcome stands."""

EXPLAINED = """\
Each row is one set of releases. The counts are of results: a case on a subject in a dtype, or a probe. *equal*: within
the bound of every element. *as listed*: different just as a table of deviations says of these versions. *other
versions*: different as an entry says, but the entry names other versions. *different*: no entry says it, or one says it
and it does not happen. *no answer*: it raised, crashed or took too long. *not expressible*: the layer has no words for
the case."""


def print_report(console: Console, report: Report) -> None:
    """The table, the changes, and what the tables do not say."""
    table = Table(*HEADERS, box=None, header_style="underline", padding=(0, 1, 0, 0))
    for column in table.columns[2:]:
        column.justify = "right"
    for row in report.rows:
        style = "" if row.record is not None else "yellow"
        table.add_row(*map(escape, cells(row)), style=style)
    console.print(table)
    for backend, found in report.changes.items():
        if any(row.backend == backend and row.record is not None for row in report.rows):
            console.print(f"\n{backend}: what changed between two releases", style="bold")
            for line in change_lines(found) or ["nothing"]:
                console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    for row in report.rows:
        for line in finding_lines(row):
            console.print(f"{row.name}: {line}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def change_lines(found: Sequence[Change]) -> list[str]:
    """A line for each change; what changed alike in several layers at once stands in one."""
    together: dict[tuple[str, str, str], list[Change]] = {}
    for change in found:
        together.setdefault((change.text, change.since, change.where), []).append(change)
    lines = []
    for group in together.values():
        subjects = ", ".join(change.subject for change in group)
        lines.append(f"{subjects}: {group[0].text} since {group[0].since}{group[0].where}")
    return lines


def markdown(report: Report, source: str) -> str:
    """The outcome as part of a page.

    Args:
        report: all of it.
        source: the name of the file of sets.
    """
    cases = ", ".join(f"`{name}`" for name in report.request.cases) or "all"
    lines = [
        f"Written by `mha matrix {source} --markdown FILE`.",
        f"Dtypes: {', '.join(report.request.dtypes)}; cases: {cases}.",
        "",
        EXPLAINED,
        "",
        _markdown_row(HEADERS),
        _markdown_row(["---"] * 2 + ["---:"] * (len(HEADERS) - 2)),
        *(_markdown_row(cells(row)) for row in report.rows),
    ]
    notes = [f"- {_plain(row.name)}: {_plain(row.note)}" for row in report.rows if row.note]
    if notes:
        lines += ["", *dict.fromkeys(notes)]
    lines += ["", "### What changed between two releases"]
    for backend, found in report.changes.items():
        lines += ["", f"#### {backend}", "", *(f"- {_plain(line)}" for line in change_lines(found) or ["nothing"])]
    lines += ["", "### What the tables do not say, or could not be run"]
    said = False
    for row in report.rows:
        own = finding_lines(row)
        if own:
            said = True
            lines += ["", f"#### {_plain(row.name)}", "", *(f"- {_plain(line)}" for line in own)]
    if not said:
        lines += ["", "Nothing: all of it is equal, or as listed."]
    return "\n".join([*lines, ""])


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


def _markdown_row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(_plain(text) for text in texts)} |"


def _plain(text: str) -> str:
    r"""A text in which Markdown sees no marks of its own.

    >>> _plain("a|b <c> x*y _z_")
    'a\\|b &lt;c&gt; x\\*y \\_z\\_'
    """
    for mark in ("\\", "|", "*", "_", "`"):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;").replace(">", "&gt;")
