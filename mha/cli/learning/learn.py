"""`mha learn`: exercises that name the mistake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mha.cli.common import CouldNotRun, consoles, finish, progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from mha.learn.exercise import Exercise
    from mha.learn.judge import Verdict

FRAMEWORKS = ("numpy", "torch", "tf", "jax", "mxnet")
COLOURS = {"right": "green", "wrong": "red", "to do": "dim", "no answer": "yellow", "can't run": "yellow"}

PRINTED = 8
"""Most lines that are shown of what a file printed."""

FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("."),
    help="Where the exercises are; the current folder by default.",
)
TIME_LIMIT = click.option(
    "--time-limit",
    type=click.FloatRange(0.1, 1e6),
    default=10.0,
    show_default=True,
    help="Seconds for one exercise.",
)
FRAMEWORK = click.option("--framework", type=click.Choice(FRAMEWORKS), default="numpy", show_default=True)


@click.group()
def learn() -> None:
    """Exercises: write a step of attention, and be told which mistake is in it.

    `mha learn start DIR` writes small files; `cd DIR`, edit one, and `mha learn check NAME` judges it. Hints go
    deeper level by level. What passes is done: nothing else is kept.

    Exit status of check: 0 all right; 1 something is wrong or still to be written; 2 something gave no answer.
    """


@learn.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--framework",
    "frameworks",
    type=click.Choice(FRAMEWORKS),
    multiple=True,
    help="Translations into this framework (repeatable); into NumPy by default.",
)
def start(folder: Path, frameworks: tuple[str, ...]) -> None:
    """Write the exercises into FOLDER. Files that are there stay as they are."""
    from mha.learn.folder import start as write

    try:
        written, kept = write(folder, frameworks or ("numpy",))
    except OSError as error:
        raise CouldNotRun(str(error)) from error
    also = f"; {len(kept)} were there, and stay as they are" if kept else ""
    click.echo(f"{len(written)} exercises written to {folder}{also}.")
    click.echo(f"Begin with:  cd {folder}  and edit write/softmax.py;  mha learn check softmax  judges it.")


@learn.command(name="list")
@FRAMEWORK
def listing(framework: str) -> None:
    """List the exercises."""
    from rich.table import Table

    from mha.learn.exercises import TRACKS, all_exercises

    table = Table("track", "exercise", "task")
    for track, about in TRACKS.items():
        table.add_row(track, "", about, style="bold")
        for exercise in all_exercises((framework,)):
            if exercise.track == track:
                table.add_row("", exercise.name, exercise.task)
        table.add_section()
    consoles()[0].print(table)


@learn.command()
@click.argument("name", required=False)
@click.option("--watch", is_flag=True, help="Judge again whenever a file is saved, until Ctrl-C.")
@FOLDER
@TIME_LIMIT
def check(name: str | None, watch: bool, folder: Path, time_limit: float) -> None:
    """Judge the exercise NAME, or all whose files are in the folder."""
    from mha.learn.exercises import exercise
    from mha.learn.folder import in_folder, there

    chosen = [in_folder(exercise(name), folder)] if name else there(folder)
    console, errors = consoles()
    try:
        seen = {one: _saved(folder / one.file) for one in chosen}  # before they are read
        verdicts = _judged(console, errors, chosen, folder, time_limit)
        if watch:
            verdicts = _watch(console, verdicts, seen, folder, time_limit)
    finally:
        _end()
    statuses = {verdict.status for verdict in verdicts}
    finish(statuses & {"wrong", "to do"}, statuses - {"right"})


def _judged(
    console: Console, errors: Console, chosen: Sequence[Exercise], folder: Path, time_limit: float
) -> list[Verdict]:
    """Judge and print: one in full, several in a line each."""
    from mha.learn.judge import judge, judge_all

    if len(chosen) == 1:
        verdict = judge(chosen[0], folder, time_limit=time_limit)
        _print(console, verdict)
        return [verdict]
    verdicts = []
    with progress(errors, len(chosen), _name_of) as advance:
        for verdict in judge_all(chosen, folder, time_limit=time_limit):
            verdicts.append(verdict)
            advance(verdict)
    for verdict in verdicts:
        console.print(_line(verdict), overflow="ellipsis", no_wrap=True)
    right = sum(verdict.status == "right" for verdict in verdicts)
    console.print(f"{right} of {len(verdicts)} exercises are right.")
    return verdicts


def _print(console: Console, verdict: Verdict) -> None:
    """One verdict in full."""
    from rich.text import Text

    from mha_core.errors import shown

    console.print(_line(verdict), soft_wrap=True)
    if verdict.printed:
        lines = [shown(line) for line in verdict.printed.splitlines()[:PRINTED]]
        console.print(Text("it printed: " + "\n            ".join(lines)), style="dim", soft_wrap=True)
    if verdict.status in ("wrong", "no answer", "to do"):
        console.print(f"What is wrong:  mha learn hint {verdict.exercise.name}", style="dim")


def _name_of(verdict: Verdict) -> str:
    return verdict.exercise.name


def _line(verdict: Verdict) -> Text:
    from rich.text import Text

    text = Text(f"{verdict.exercise.name:<26}")
    text.append(f"{verdict.status:<11}", style=COLOURS[verdict.status])
    text.append(verdict.line)
    return text


def _watch(
    console: Console,
    verdicts: Sequence[Verdict],
    seen: dict[Exercise, tuple[int, int]],
    folder: Path,
    time_limit: float,
) -> list[Verdict]:
    """Judge what was saved since it was seen, until an interrupt; the last verdict on each exercise."""
    import time

    from mha.learn.judge import judge

    console.print("Watching; Ctrl-C ends it.", style="dim")
    last = {verdict.exercise: verdict for verdict in verdicts}
    try:
        while True:
            time.sleep(0.3)
            for exercise, before in seen.items():
                if (now := _saved(folder / exercise.file)) != before:
                    seen[exercise] = now
                    last[exercise] = judge(exercise, folder, time_limit=time_limit)  # what is printed is what counts
                    _print(console, last[exercise])
    except KeyboardInterrupt:
        console.print()
    return list(last.values())


def _saved(path: Path) -> tuple[int, int]:
    """When a file was saved, and its size; zeros if it is not there, as for a moment while an editor saves it."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


@learn.command()
@click.argument("name")
@click.option("--level", type=click.IntRange(1, 4), default=2, show_default=True, help="How much is said.")
@FRAMEWORK
@FOLDER
@TIME_LIMIT
def hint(name: str, level: int, framework: str, folder: Path, time_limit: float) -> None:
    """Say what is wrong with the exercise NAME as it is now.

    Level 1: the first wrong element. 2: what is wrong. 3: what to change. 4: the real function, in NumPy and in the
    chosen framework.
    """
    from mha.learn.exercises import exercise
    from mha.learn.folder import in_folder
    from mha.learn.hints import DEEPEST
    from mha.learn.hints import hint as said

    one = exercise(name)
    try:
        if level < DEEPEST:
            in_folder(one, folder)
        click.echo(said(one, folder, level, framework, time_limit=time_limit))
    finally:
        _end()
    if level < DEEPEST:
        click.echo(f"\nDeeper:  mha learn hint {name} --level {level + 1}")


@learn.command()
@click.argument("name")
@FRAMEWORK
def show(name: str, framework: str) -> None:
    """Print the real function of the exercise NAME: the answer."""
    from mha.learn.exercises import exercise
    from mha.learn.hints import real

    click.echo(real(exercise(name), framework))


def _end() -> None:
    """End the processes in which files ran."""
    from conformance.workers.execute import end_idle

    end_idle()
