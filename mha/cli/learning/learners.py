"""`mha learn check` and `mha learn class`: learners' files are judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mha.cli.common import consoles, finish, progress, say, show_rows, write_asked
from mha.cli.options import OutputFile

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from mha.learn.exercise import Exercise
    from mha.learn.judge import Verdict
    from mha.learn.progress import Progress

COURSE = "course"
TRACKS = ("write", "translate", "catch", "backwards", "layer", "experiment")
COLOURS = {"right": "green", "wrong": "red", "to do": "dim", "no answer": "yellow", "can't run": "yellow"}

MISTAKES = ("mistake", "exercise", "learners")
"""Headers of the table of a class's mistakes."""

PRINTED = 8
"""Most lines that are shown of what a file printed."""


def _or_all(context: click.Context, option: click.Parameter, tracks: tuple[str, ...]) -> tuple[str, ...]:
    return tracks or TRACKS


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
ONLY = click.option(
    "--only",
    metavar="TRACK",
    type=click.Choice((COURSE, *TRACKS)),
    multiple=True,
    callback=_or_all,
    help=f"This track alone (repeatable): {', '.join(TRACKS)}; or {COURSE}, what its lessons ask.",
)
JSON = click.option("--json", "json_path", type=OutputFile(), help="Also write the results to this file.")


@click.command()
@click.argument("name", required=False)
@click.option("--watch", is_flag=True, help="Judge again whenever a file is saved, until Ctrl-C.")
@ONLY
@JSON
@FOLDER
@TIME_LIMIT
def check(
    name: str | None, watch: bool, only: tuple[str, ...], *, json_path: Path | None, folder: Path, time_limit: float
) -> None:
    """Judge the exercise NAME, or every exercise whose file is in the folder."""
    from mha.learn.exercise import LayerExercise
    from mha.learn.exercises import exercise
    from mha.learn.handout.folder import in_folder, is_untouched, there
    from mha.learn.judge import judge
    from mha.learn.progress import Progress, to_json
    from mha.learn.running.layering import cases_of

    chosen = [in_folder(exercise(name), folder)] if name else there(folder, only)
    console, errors = consoles()
    try:
        seen = {one: _saved(folder / one.file) for one in chosen}  # before they are read
        if name:
            if isinstance(chosen[0], LayerExercise) and not is_untouched(chosen[0], folder):
                say(errors, f"Comparing {len(cases_of(chosen[0]))} cases ...")
            verdicts = [judge(chosen[0], folder, time_limit=time_limit)]
            _report(console, errors, verdicts[0], folder, time_limit)
        else:
            verdicts = list(_all(errors, chosen, folder, time_limit).verdicts)
            for verdict in verdicts:
                console.print(_line(verdict), overflow="ellipsis", no_wrap=True)
            _print_next(console, Progress(tuple(verdicts)))
        if watch:
            verdicts = _watch(console, errors, verdicts, seen, folder=folder, time_limit=time_limit)
        write_asked(json_path, lambda: to_json({str(folder): Progress(tuple(verdicts))}))
    finally:
        end()
    statuses = {verdict.status for verdict in verdicts}
    finish(statuses & {"wrong", "to do"}, statuses - {"right"})


@click.command(name="class")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False))
@ONLY
@JSON
@TIME_LIMIT
def class_(folders: tuple[Path, ...], only: tuple[str, ...], json_path: Path | None, time_limit: float) -> None:
    """Judge the folders of a class: a table with a row for each folder, and how many learners make which mistake.

    Every file runs as `mha learn check` runs it, with your rights; no process runs files of two folders. Exit status: 0
    every folder was judged, right or wrong; 2 a folder has no exercises (the others are judged).
    """
    from mha.learn.handout.folder import there
    from mha.learn.hints import mistake
    from mha.learn.progress import Progress, to_json
    from mha_core.errors import SpecError

    console, errors = consoles()
    found: dict[str, Progress] = {}
    made: dict[tuple[str, str], list[str]] = {}
    for folder in folders:
        try:
            found[str(folder)] = _all(errors, there(folder, only), folder, time_limit)
            for verdict in found[str(folder)].verdicts:
                if verdict.status == "wrong" and (said := mistake(verdict, folder)):
                    made.setdefault((verdict.exercise.name, said), []).append(str(folder))
        except SpecError:
            found[str(folder)] = Progress(())
        finally:
            end()  # what a file did to its process is gone
    show_rows(console, ("folder", *only, "right", "begun, and not right"), _rows(found, only))
    most = [(*key, who) for key, who in sorted(made.items(), key=lambda one: -len(one[1]))]
    if most:
        say(console, "", "Mistakes, by how many make them:")
        show_rows(console, MISTAKES, [(said, name, str(len(who))) for name, said, who in most])
    write_asked(json_path, lambda: to_json(found, most))
    finish(different=False, failed=any(not one.verdicts for one in found.values()))


def _rows(found: dict[str, Progress], only: Sequence[str]) -> Iterator[tuple[str, ...]]:
    from mha_core.errors import shown

    for name, one in found.items():
        tracks = one.by_track()
        counts = ["{}/{}".format(*tracks[track]) if track in tracks else "" for track in only]
        begun = [verdict.exercise.name for verdict in one.verdicts if verdict.status in ("wrong", "no answer")]
        last = ", ".join(begun) if one.verdicts else "no exercises"
        yield (shown(name), *counts, f"{one.right}/{len(one.verdicts)}", last)


def go_on(folder: Path, only: Sequence[str]) -> None:
    """Print how many exercises in a folder are right, and the next one. `only`: the tracks to look at."""
    from mha.learn.handout.folder import there

    console, errors = consoles()
    try:
        _print_next(console, _all(errors, there(folder, only), folder, 10.0))
    finally:
        end()


def _print_next(console: Console, found: Progress) -> None:
    say(console, f"{found.line()}.")
    if found.course_is_done:
        say(console, "The course is done.")
    verdict = found.next()
    if verdict is None:
        return
    if verdict.status == "to do":
        word = "Beyond it" if found.course_is_done else "Next"
        say(console, f"{word}: {_about(verdict.exercise)}.", f"  {verdict.exercise.task}")
    else:
        say(console, f"Go on with: {verdict.exercise.name}, {verdict.status}: {verdict.line}")
    say(console, f"Edit {verdict.exercise.file}; judge it:  mha learn check {verdict.exercise.name}", style="dim")


def _about(exercise: Exercise) -> str:
    """Its name, level and time."""
    from mha.learn.handout.folder import minutes
    from mha.learn.tracks.course import LEVELS, row_of

    return f"{exercise.name}, level {row_of(exercise).level} of {LEVELS}, about {minutes(exercise)}"


def _all(errors: Console, chosen: Sequence[Exercise], folder: Path, time_limit: float) -> Progress:
    from mha.learn.judge import judge_all
    from mha.learn.progress import Progress

    verdicts = []
    with progress(errors, len(chosen), _name_of) as advance:
        for verdict in judge_all(chosen, folder, time_limit=time_limit):
            verdicts.append(verdict)
            advance(verdict)
    return Progress(tuple(verdicts))


def _report(console: Console, errors: Console, verdict: Verdict, folder: Path, time_limit: float) -> None:
    """One verdict in full; of a right one, what was learned and what comes next.

    Where the whole course has been begun, what is right of it has to be judged.
    """
    from mha.learn.exercises import OF_LESSONS
    from mha.learn.handout.folder import there
    from mha.learn.progress import after, learned

    _print(console, verdict)
    if verdict.status != "right":
        return
    say(console, f"Learned: {learned(verdict.exercise)}")
    following = after(verdict.exercise, there(folder), folder)
    in_course = verdict.exercise.name in OF_LESSONS
    if in_course and (following is None or following.name not in OF_LESSONS):
        course = _all(errors, there(folder, (COURSE,)), folder, time_limit)
        _print_next(console, course)
        if following and course.course_is_done:
            say(console, f"Beyond it: {_about(following)}, in {following.file}")
    else:
        say(console, f"Next: {_about(following)}, in {following.file}" if following else "What is left:  mha learn")


def _print(console: Console, verdict: Verdict) -> None:
    """One verdict in full."""
    from mha_core.errors import shown

    console.print(_line(verdict), soft_wrap=True)
    if verdict.printed:
        lines = [shown(line) for line in verdict.printed.splitlines()[:PRINTED]]
        console.print(_text("it printed: " + "\n            ".join(lines)), style="dim", soft_wrap=True)
    if verdict.status in ("wrong", "no answer", "to do"):
        asked = "How to begin" if verdict.status == "to do" else "What is wrong"
        console.print(f"{asked}:  mha learn hint {verdict.exercise.name}", style="dim")


def _name_of(verdict: Verdict) -> str:
    return verdict.exercise.name


def _text(line: str, **style: Any) -> Text:
    """A text as it is: names in it may look like markup."""
    from rich.text import Text

    return Text(line, **style)


def _line(verdict: Verdict) -> Text:
    text = _text(f"{verdict.exercise.name:<26}")
    text.append(f"{verdict.status:<11}", style=COLOURS[verdict.status])
    text.append(verdict.line)
    return text


def _watch(
    console: Console,
    errors: Console,
    verdicts: Sequence[Verdict],
    seen: dict[Exercise, tuple[int, int]],
    *,
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
                    _report(console, errors, last[exercise], folder, time_limit)
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


def end() -> None:
    """End the processes in which files ran."""
    from conformance.workers.execute import end_idle

    end_idle()
