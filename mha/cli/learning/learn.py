"""`mha learn`: exercises that name the mistake."""

from pathlib import Path

import click

from mha.cli.common import CouldNotRun, consoles, show_rows
from mha.cli.ending import Program
from mha.cli.learning.learners import FOLDER, ONLY, TIME_LIMIT, check, class_, end, go_on

FRAMEWORKS = ("numpy", "torch", "tf", "jax", "mxnet")
OTHER_NAMES = {"pytorch": "torch", "tensorflow": "tf", "keras": "tf", "flax": "jax", "gluon": "mxnet"}


class Framework(click.Choice[str]):
    """A choice of a framework, which takes its other names too."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(OTHER_NAMES.get(value, value), param, ctx)


FRAMEWORK = click.option("--framework", type=Framework(FRAMEWORKS), default="numpy", show_default=True)


@click.group(cls=Program, invoke_without_command=True)
@ONLY
@click.pass_context
def learn(context: click.Context, only: tuple[str, ...]) -> None:
    """Exercises: write a step of attention, and be told which mistake is in it.

    `mha learn start DIR` writes a small file for each exercise. In DIR, `mha learn` names the next exercise. Edit its
    file, and `mha learn check NAME` judges it. Each level of hints says more. `mha learn` judges all files each time.

    Exit status of check: 0 all right; 1 something is wrong or still to be written; 2 something gave no answer.
    """
    if context.invoked_subcommand is None:
        _what_next(Path("."), only)


def _what_next(folder: Path, only: tuple[str, ...]) -> None:
    """How far the folder is, and what comes next; how to begin where there are no exercises."""
    from mha.learn.handout.folder import there
    from mha_core.errors import SpecError

    try:
        there(folder, only)
    except SpecError:
        click.echo("There are no exercises in this folder. To begin (NumPy is enough):")
        click.echo("  mha learn start exercises --only course\n  cd exercises\n  mha learn")
        return
    go_on(folder, only)


@learn.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--framework",
    "frameworks",
    type=Framework(FRAMEWORKS),
    multiple=True,
    help="Translations into this framework (repeatable); into NumPy by default.",
)
@ONLY
def start(folder: Path, frameworks: tuple[str, ...], only: tuple[str, ...]) -> None:
    """Write the exercises into FOLDER. Existing files are not changed."""
    from mha.learn.handout.folder import start as write

    try:
        written, kept = write(folder, frameworks or ("numpy",), only)
    except OSError as error:
        raise CouldNotRun(str(error)) from error
    also = f"; {len(kept)} were there, and stay as they are" if kept else ""
    click.echo(f"{len(written)} exercises written to {folder}{also}.")
    click.echo(f"Begin with:  cd {folder}\n             mha learn")


@learn.command(name="list")
@FRAMEWORK
@ONLY
def listing(framework: str, only: tuple[str, ...]) -> None:
    """List the exercises of each track (kind of exercise) in their order, with the minutes that they take."""
    from mha.learn.exercises import TRACKS, all_exercises, chosen
    from mha.learn.tracks.course import row_of

    found = []
    for track in only:
        rows = [(one, row_of(one)) for one in chosen(all_exercises((framework,)), (track,))]
        about = TRACKS.get(track, "What the lessons ask, in their order.")
        found.append((track, "", str(sum(row.minutes for _, row in rows)), about))
        found += [(f"  {one.name}", str(row.level), str(row.minutes), one.task) for one, row in rows]
    show_rows(consoles()[0], ("exercise", "level", "minutes", "task"), found)


@learn.command()
@click.argument("name")
@click.option("--level", type=click.IntRange(1, 4), default=2, show_default=True, help="How much is said.")
@FRAMEWORK
@FOLDER
@TIME_LIMIT
def hint(name: str, level: int, framework: str, folder: Path, time_limit: float) -> None:
    """Say what is wrong with the exercise NAME as it is now.

    Level 1: the first wrong element. 2: what is wrong. 3: what to change, where that is known. 4: a short answer that
    is right, in NumPy and in the chosen framework.
    """
    from mha.learn.exercises import exercise
    from mha.learn.handout.folder import in_folder
    from mha.learn.hints import DEEPEST
    from mha.learn.hints import hint as said

    one = exercise(name)
    try:
        if level < DEEPEST:
            in_folder(one, folder)
        text, deeper = said(one, folder, level, framework, time_limit=time_limit)
    finally:
        end()
    click.echo(text)
    if deeper:
        click.echo(f"\nDeeper:  mha learn hint {name} --level {deeper}")


@learn.command()
@click.argument("name")
@FRAMEWORK
def show(name: str, framework: str) -> None:
    """Print a short, right answer to the exercise NAME, in NumPy and in the chosen framework."""
    from mha.learn.exercises import exercise
    from mha.learn.hints import solved

    click.echo(solved(exercise(name), framework))


learn.add_command(check)
learn.add_command(class_)
