"""`mha deviations`: list where other projects' layers do not follow the definition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mha.cli import options
from mha.cli.common import CouldNotRun, consoles, say, show_rows, write_asked
from mha.cli.options import Options, argument

if TYPE_CHECKING:
    from conformance.deviations.entry import Deviation

SCHEMA_VERSION = 1
"""Version of the JSON file; a change that readers would notice raises it."""


class DeviationsOptions(Options):
    """The argument and options of `mha deviations`."""

    identifier: str | None = argument(required=False, metavar="[ID]")
    patterns: tuple[str, ...] = options.several("--id", help="Only entries of this id; wildcards work (repeatable).")
    subjects: tuple[str, ...] = options.several(
        "--subject", "-s", help="Only of this layer; wildcards work (repeatable)."
    )
    frameworks: tuple[str, ...] = options.several("--framework", "-f", help="Only of this framework (repeatable).")
    table_path: Path | None = options.deviations_file("Also the entries of a table of your own.")
    json_path: Path | None = options.json_file("Also write the entries to this file.")


@options.command(DeviationsOptions)
def deviations(asked: DeviationsOptions) -> None:
    """List where other people's layers do not follow the definition, and since when; with ID, show one in full."""
    from conformance.deviations.known import load

    selected = _selected(load(asked.table_path).entries, asked)
    console, _ = consoles()
    if asked.identifier and len(selected) == 1:
        console.print(_full(selected[0]))
    else:
        cells = ((one.id, one.subject, one.summary, one.definition, one.link) for one in selected)
        show_rows(console, ("id", "layer", "what it does", "what the definition says", "link"), cells)
        say(console, f"{len(selected)} deviations")
    whole = {"schema": SCHEMA_VERSION, "deviations": [entry.to_dict() for entry in selected]}
    write_asked(asked.json_path, lambda: whole)


def _selected(entries: Sequence[Deviation], asked: DeviationsOptions) -> list[Deviation]:
    """The entries that match; a filter that matches none at all is an error."""
    from fnmatch import fnmatchcase

    from mha_core.errors import meant

    filters = {
        "id": (
            (*filter(None, [asked.identifier]), *asked.patterns),
            lambda entry, text: fnmatchcase(entry.id, text),
        ),
        "--subject": (
            asked.subjects,
            lambda entry, text: fnmatchcase(entry.subject, text) or fnmatchcase(entry.subject.split(":")[1], text),
        ),
        "--framework": (asked.frameworks, lambda entry, text: text in entry.frameworks),
    }
    selected = list(entries)
    for name, (texts, matches) in filters.items():
        for text in texts:
            if not any(matches(entry, text) for entry in entries):
                known = sorted({name for entry in entries for name in entry.frameworks})
                hint = f"there are: {', '.join(known)}" if name == "--framework" else "`mha deviations` lists them"
                within = [entry.id for entry in entries if text in entry.id]
                ids = [entry.id for entry in entries]
                near = meant(text, known if name == "--framework" or "-" not in text else ids)
                if name == "id" and within:
                    near = f"; did you mean '*{text}*', which fits {len(within)}?"
                elif name == "id" and "-" not in text:
                    near = near.replace("mean ", "mean --framework ")
                hint += near
                raise CouldNotRun(f"{name} {text!r} fits no deviation; {hint}")
        if texts:
            selected = [entry for entry in selected if any(matches(entry, text) for text in texts)]
    if not selected and entries:
        raise CouldNotRun("no deviation fits all of these filters")
    return selected


def _full(entry: Deviation) -> Any:
    """A table of every field of one entry."""
    from rich.table import Table
    from rich.text import Text

    shows = f"{', '.join(entry.cases)} ({', '.join(entry.dtypes)}): {', '.join(entry.arrays)}"
    rows = {
        "id": entry.id,
        "layer": entry.subject,
        "what it does": entry.summary,
        "what the definition says": entry.definition,
        "why": entry.reason,
        "shows in": shows if entry.cases else "no case of the suite",
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
