"""`mha compare`: find the first difference between a port and its original."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mha.cli.common import COULD_NOT_RUN, DIFFERENT, EQUAL, CouldNotRun, OutputFile, as_one, says

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.subjects.subject import Subject
    from mha.comparison.comparison import Comparison


@dataclass(frozen=True)
class CompareOptions:
    """The arguments and options of `mha compare`."""

    original: Path
    port: Path | None
    spec: str | None
    dtype: str | None
    patterns: tuple[str, ...]
    by: str | None
    strict: bool
    time_limit: float
    json_path: Path | None
    unseen: bool
    also: tuple[str, ...]


@click.command()
@click.argument("original", type=click.Path(path_type=Path))
@click.argument("port", type=click.Path(path_type=Path), required=False)
@click.option("--subject", "-s", "spec", help="A live port instead of PORT: package.module:factory.")
@click.option("--dtype", "-d", help="Of the subject. Default: that of each call.")
@click.option("--case", "-c", "patterns", multiple=True, help="Only calls of this name; wildcards work (repeatable).")
@click.option(
    "--by", type=click.Choice(["name", "order"]), help="How calls are paired. Default: by name, if they match."
)
@click.option(
    "--strict",
    is_flag=True,
    help="Refuse recordings that left out modules which look like attention, or lack what the model gave.",
)
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds that a subject may take for one call.")
@click.option("--json", "json_path", type=OutputFile(), help="Also write everything to this file.")
@click.option("--unseen/--no-unseen", default=True, help="Whether to say which bugs these calls would not have shown.")
@click.option("--also", multiple=True, help="A module whose outputs both must hold: mha.capture(..., also=[NAME]).")
@as_one(CompareOptions)
def compare(asked: CompareOptions) -> None:
    """Find the first thing in which PORT parts from ORIGINAL: inputs, mask, settings, weights or outputs.

    Both are files that mha.capture wrote, of the same calls. With --subject, a live port is given the original's
    settings, weights and inputs instead. What parts outside attention is said as such: the inputs of one layer
    differ, and the outputs of the layer before agree. What stands behind the last attention layer is judged by what
    the models gave, and by other modules that were recorded (--also).

    Exit status: 0 equal, 1 different, 2 could not run.
    """
    from rich.console import Console

    from mha.comparison.compare import compare as run
    from mha.recordings.recording import Recording
    from mha_core import SpecError
    from mha_core.dtypes import check_dtype
    from mha_core.files.writing import write_json

    if (asked.port is None) == (asked.spec is None):
        raise click.UsageError("Give either PORT or --subject.")
    if asked.spec is None and asked.dtype is not None:
        raise click.UsageError("--dtype belongs to --subject; the calls in PORT have their own.")
    console = Console()
    try:
        first = Recording.load(asked.original)
        second = None if asked.port is None else Recording.load(asked.port)
        for recording in (first, second):
            if asked.strict and recording is not None:
                recording.check_coverage()
                recording.check_ends()
        other = second or subject_in(str(asked.spec), asked.dtype and check_dtype(asked.dtype), asked.time_limit)
        patterns = asked.patterns or ("*",)
        with Console(stderr=True).status("") as status:
            found = run(
                first,
                other,
                by=asked.by,
                patterns=patterns,
                also=asked.also,
                unseen=asked.unseen,
                progress=says(status),
            )
    except (SpecError, FileNotFoundError) as error:
        raise CouldNotRun(str(error)) from error
    show(console, found)
    if asked.json_path is not None:
        coverage = {
            name: None if one is None or one.coverage is None else one.coverage.to_dict()
            for name, one in (("original", first), ("port", second))
        }
        write_json(asked.json_path, {**found.to_dict(), "coverage": coverage})
    sys.exit(DIFFERENT if found.different else COULD_NOT_RUN if found.failed else EQUAL)


def show(console: Console, found: Comparison) -> None:
    """Print notes on the pairing, the table, and the findings in words."""
    from mha.comparison.text import lines, table

    def text(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    for note in found.notes:
        text(note)
    if found.pairs:
        console.print("\nDifference / allowance of inputs, worst error / allowed error of outputs", style="bold")
        console.print(table(found))
        console.print()
    for line in lines(found):
        text(line)


def subject_in(spec: str, dtype: str | None, time_limit: float) -> Callable[[str], Subject]:
    """A function from the dtype of a call to the subject in `dtype`, or in the dtype of the call if that is None."""
    from conformance.subjects.load import load_subject

    return lambda own: load_subject(spec, dtype or own, time_limit=time_limit)
