"""`mha deviations`: list where other projects' layers do not follow the definition."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mha.cli.common import COULD_NOT_RUN, DIFFERENT, EQUAL, CouldNotRun, OutputFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from conformance.deviations.entry import Deviation
    from conformance.reprobe import Finding

SCHEMA_VERSION = 1
"""Version of the JSON file; a change that readers would notice raises it."""

ID_WIDTH = 22
"""Width of the first column, where ids are broken at their hyphens, and least width of the second."""

STYLES = {"happens": "green", "gone": "bold red", "failed": "bold red"}


@click.command()
@click.argument("identifier", required=False, metavar="[ID]")
@click.option("--id", "patterns", multiple=True, help="Only entries of this id; wildcards work (repeatable).")
@click.option("--subject", "-s", "subjects", multiple=True, help="Only of this layer; wildcards work (repeatable).")
@click.option("--framework", "-f", "frameworks", multiple=True, help="Only of this framework (repeatable).")
@click.option("--probe", is_flag=True, help="Look whether each still happens with what is installed.")
@click.option(
    "--deviations", "table_path", type=click.Path(path_type=Path), help="Also the entries of a table of your own."
)
@click.option("--json", "json_path", type=OutputFile(), help="Also write the entries to this file.")
def deviations(
    identifier: str | None,
    patterns: tuple[str, ...],
    subjects: tuple[str, ...],
    frameworks: tuple[str, ...],
    probe: bool,
    table_path: Path | None,
    json_path: Path | None,
) -> None:
    """List where other people's layers do not follow the definition, and since when; with ID, one in full.

    Exit status: 0, or 1 if one no longer happens (--probe), 2 could not run.
    """
    from rich.console import Console

    from conformance.deviations.known import load
    from mha_core import SpecError

    try:
        entries = load(table_path).entries
    except SpecError as error:
        raise CouldNotRun(str(error)) from error
    selected = _selected(entries, (identifier, *patterns) if identifier else patterns, subjects, frameworks)
    console = Console()
    if probe:
        findings = _probe(console, selected)
    else:
        findings = []
        in_full = identifier and len(selected) == 1
        console.print(_full(selected[0]) if in_full else _table(selected, wide=console.width >= 110))
    if json_path is not None:
        from mha_core.files.writing import write_json

        found = [finding.to_dict() for finding in findings] or [entry.to_dict() for entry in selected]
        write_json(json_path, {"schema": SCHEMA_VERSION, "deviations": found})
    outcomes = {finding.outcome for finding in findings}
    sys.exit(DIFFERENT if "gone" in outcomes else COULD_NOT_RUN if "failed" in outcomes else EQUAL)


def _selected(
    entries: Sequence[Deviation],
    patterns: tuple[str, ...],
    subjects: tuple[str, ...],
    frameworks: tuple[str, ...],
) -> list[Deviation]:
    """The entries that match; a filter that matches none at all is an error."""
    from fnmatch import fnmatchcase

    filters = {
        "id": (patterns, lambda entry, text: fnmatchcase(entry.id, text)),
        "--subject": (
            subjects,
            lambda entry, text: fnmatchcase(entry.subject, text) or fnmatchcase(entry.subject.split(":")[1], text),
        ),
        "--framework": (frameworks, lambda entry, text: text in entry.frameworks),
    }
    selected = list(entries)
    for name, (texts, matches) in filters.items():
        for text in texts:
            if not any(matches(entry, text) for entry in entries):
                known = sorted({name for entry in entries for name in entry.frameworks})
                hint = f"there are: {', '.join(known)}" if name == "--framework" else "`mha deviations` lists them"
                raise CouldNotRun(f"{name} {text!r} fits no deviation; {hint}")
        if texts:
            selected = [entry for entry in selected if any(matches(entry, text) for text in texts)]
    if not selected and entries:
        raise CouldNotRun("no deviation fits all of these filters")
    return selected


def _table(selected: Sequence[Deviation], *, wide: bool) -> Any:
    """One row per entry, with its link where there is room for it."""
    from textwrap import wrap

    from rich.table import Table
    from rich.text import Text

    headers = ["id", "layer", "what it does", "what the definition says"]
    table = Table(*headers, *(["link"] if wide else []), show_lines=True)
    for column in table.columns[:2]:
        column.overflow, column.min_width = "fold", ID_WIDTH
    for entry in selected:
        identifier = "\n".join(wrap(entry.id, ID_WIDTH))
        link = Text(_short(entry.link), style=f"link {entry.link}")
        cells = (identifier, entry.layer, Text(entry.summary), Text(entry.definition))
        table.add_row(*cells, *([link] if wide else []))
    table.caption = f"{len(selected)} deviations"
    table.caption_justify = "left"
    return table


def _short(link: str) -> str:
    """A link in short: "pytorch#41508" for an issue, else the host and the last part.

    >>> _short("https://github.com/pytorch/pytorch/issues/41508"), _short("https://docs.example.org/a/b.html#c")
    ('pytorch#41508', 'docs.example.org')
    """
    from urllib.parse import urlsplit

    parts = urlsplit(link)
    path = parts.path.strip("/").split("/")
    if parts.netloc == "github.com" and len(path) == 4 and path[2] in ("issues", "pull"):
        return f"{path[1]}#{path[3]}"
    return f"{path[1]} source" if parts.netloc == "github.com" and len(path) > 4 else parts.netloc


def _full(entry: Deviation) -> Any:
    """A table of every field of one entry."""
    from rich.table import Table
    from rich.text import Text

    shows = entry.probe or f"{', '.join(entry.cases)} ({', '.join(entry.dtypes)}): {', '.join(entry.arrays)}"
    rows = {
        "id": entry.id,
        "layer": entry.subject,
        "what it does": entry.summary,
        "what the definition says": entry.definition,
        "why": entry.reason,
        "shows in": shows,
        **({"only where": entry.only_where} if entry.only_where else {}),
        "versions": ", ".join(entry.versions),
        "installed": entry.why_not_here() or "yes",
        "link": entry.link,
    }
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(name, Text(text))
    return table


def _probe(console: Console, selected: Sequence[Deviation]) -> list[Finding]:
    """Probe, print a line for each as it comes, and count."""
    from collections import Counter

    from conformance.reprobe import probe_all
    from conformance.subjects.quiet import quiet_stderr

    findings = []
    with quiet_stderr():
        for finding in probe_all(selected):
            findings.append(finding)
            style = STYLES.get(finding.outcome, "yellow")
            console.print(f"[{style}]{finding.outcome}[/]  [bold]{finding.entry.id}[/]", highlight=False)
            console.print(f"    {finding.seen}", markup=False, highlight=False, soft_wrap=True)
    counts = Counter(finding.outcome for finding in findings)
    console.print(", ".join(f"{number} {outcome}" for outcome, number in counts.items()) or "nothing to probe")
    return findings
