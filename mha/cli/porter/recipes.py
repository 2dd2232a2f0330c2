"""`mha recipes`: list the families of Hugging Face transformers whose attention can be expressed, and the others."""

from __future__ import annotations

from pathlib import Path

from mha.cli import options
from mha.cli.common import CouldNotRun, consoles, finish, say, write_asked
from mha.cli.options import Options

SCHEMA_VERSION = 1
"""Version of the JSON file; a change that readers would notice raises it."""


class RecipesOptions(Options):
    """The options of `mha recipes`."""

    types: tuple[str, ...] = options.several(
        "--model-type", "-t", help="Only families with this `model_type` of a config; wildcards work (repeatable)."
    )
    json_path: Path | None = options.json_file("Also write the families to this file.")


WIDTH = 120
"""Columns of the table where no terminal says how many there are."""


@options.command(RecipesOptions)
def recipes(asked: RecipesOptions) -> None:
    """List the families of transformers whose attention layers are read, what each adds, and those that are refused.

    Exit status: 0; 2 if no family has such a model type.
    """
    from fnmatch import fnmatchcase

    from rich.table import Table

    from mha.recipes.rows.table import counts, rows

    for pattern in asked.types:
        if not any(fnmatchcase(name, pattern) for row in rows() for name in row.model_types):
            raise CouldNotRun(f"--model-type {pattern!r} fits no family; `mha recipes` lists them")
    selected = [
        row
        for row in rows()
        if not asked.types or any(fnmatchcase(name, pattern) for name in row.model_types for pattern in asked.types)
    ]
    console, _ = consoles()
    table = Table("family", "model types", "adds", "what is special", show_lines=True)
    table.columns[0].no_wrap = True
    for column in table.columns:
        column.overflow = "fold"  # a name that is cut would be another one
    for row in selected:
        table.add_row(row.family, ", ".join(row.model_types), row.adds, row.words)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    if not asked.types:
        found = counts()
        say(console, f"published models: {found['expressed']} of families that are read, {found['refused']} of refused")
    write_asked(asked.json_path, lambda: {"schema": SCHEMA_VERSION, "families": [row.to_dict() for row in selected]})
    finish(different=False)
