"""`mha compare`: find the first difference between a port and its original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mha.cli import options
from mha.cli.common import consoles, finish, say, says, write_asked
from mha.cli.options import Options, option

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.subjects.subject import Subject
    from mha.comparison.comparison import Comparison


class CompareOptions(Options):
    """The arguments and options of `mha compare`."""

    original: Path = options.path_argument()
    port: Path | None = options.path_argument(required=False)
    spec: str | None = option("--subject", "-s", help="A live port instead of PORT: package.module:factory.")
    dtype: str | None = option("--dtype", "-d", help="Of the subject. Default: that of each call.")
    patterns: tuple[str, ...] = options.calls()
    by: str | None = option(
        "--by",
        type=click.Choice(["name", "order"]),
        help="How calls are paired. Default: by name, if they match.",
    )
    strict: bool = options.flag(
        "--strict",
        "Refuse recordings that left out modules which look like attention, or lack what the model gave.",
    )
    time_limit: float = options.time_limit(of="call")
    json_path: Path | None = options.json_file()
    unseen: bool = options.unseen()
    also: tuple[str, ...] = options.several(
        "--also",
        help="A module whose outputs both must hold: mha.capture(..., also=[NAME]).",
    )


@options.command(CompareOptions)
def compare(asked: CompareOptions) -> None:
    """Find the first thing in which PORT parts from ORIGINAL: inputs, mask, settings, weights or outputs.

    Both are files that mha.capture wrote, of the same calls. With --subject, a live port is given the original's
    settings, weights and inputs instead. What parts outside attention is said as such: the inputs of one layer
    differ, and the outputs of the layer before agree. What stands behind the last attention layer is judged by what
    the models gave, and by other modules that were recorded (--also).

    Exit status: 0 equal, 1 different, 2 could not run.
    """
    from mha.comparison.compare import compare as run
    from mha.recordings.recording import Recording
    from mha_core.dtypes import check_dtype

    if (asked.port is None) == (asked.spec is None):
        raise click.UsageError("Give either PORT or --subject.")
    if asked.spec is None and asked.dtype is not None:
        raise click.UsageError("--dtype belongs to --subject; the calls in PORT have their own.")
    console, errors = consoles()
    first = Recording.load(asked.original)
    second = None if asked.port is None else Recording.load(asked.port)
    for recording in (first, second):
        if asked.strict and recording is not None:
            recording.check_coverage()
            recording.check_ends()
    with errors.status("") as status:
        found = run(
            first,
            second or subject_in(str(asked.spec), asked.dtype and check_dtype(asked.dtype), asked.time_limit),
            by=asked.by,
            patterns=asked.patterns or ("*",),
            also=asked.also,
            unseen=asked.unseen,
            progress=says(status),
        )
    show(console, found)
    coverage = {
        name: None if one is None or one.coverage is None else one.coverage.to_dict()
        for name, one in (("original", first), ("port", second))
    }
    write_asked(asked.json_path, lambda: {**found.to_dict(), "coverage": coverage})
    finish(found.different, found.failed)


def show(console: Console, found: Comparison) -> None:
    """Print notes on the pairing, the table, and the findings in words."""
    from mha.comparison.text import lines, table

    say(console, *found.notes)
    if found.pairs:
        console.print("\nDifference / allowance of inputs, worst error / allowed error of outputs", style="bold")
        console.print(table(found))
        console.print()
    say(console, *lines(found))


def subject_in(spec: str, dtype: str | None, time_limit: float) -> Callable[[str], Subject]:
    """A function from the dtype of a call to the subject in `dtype`, or in the dtype of the call if that is None."""
    from conformance.subjects.load import load_subject

    return lambda own: load_subject(spec, dtype or own, time_limit=time_limit)
