"""Parts of several commands: exit statuses, options, loading of backends and subjects, the progress bar."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from conformance.subjects.surroundings import kept_surroundings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from conformance.judging.result import Result
    from conformance.subjects.backend import BackendSubject
    from mha_core.backend import Backend

EQUAL, DIFFERENT, COULD_NOT_RUN = 0, 1, 2
"""The exit statuses of every command that judges something."""

Item = TypeVar("Item")


class CouldNotRun(click.ClickException):
    """Ends the command with its message and exit status 2."""

    exit_code = COULD_NOT_RUN


def exit_status(results: Sequence[Result], also: Sequence[Result] = (), *, interrupted: bool = False) -> int:
    """The exit status for results: 1 if anything is different, 2 if something did not run or nothing was judged.

    Args:
        results: what the command was to judge.
        also: further results, which do not count as a judgement if there is nothing else.
        interrupted: whether results are missing.
    """
    statuses = {result.status for result in (*results, *also)}
    nothing_judged = not {result.status for result in results} & {"equal", "deviates", "different"}
    failed = "failed" in statuses or interrupted or nothing_judged
    return DIFFERENT if "different" in statuses else COULD_NOT_RUN if failed else EQUAL


def as_one(kind: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that passes the parameters of a command to its function as one object.

    Args:
        kind: a dataclass, whose fields have the names of the parameters.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(*context: click.Context, **parameters: Any) -> None:
            function(*context, kind(**parameters))

        return command

    return decorate


class OutputFile(click.ParamType):
    """The type of an option for a file to write: made absolute, and checked before anything runs.

    Args:
        dash: whether "-" stands for standard output.
    """

    name = "file"

    def __init__(self, *, dash: bool = False) -> None:
        self.dash = dash

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The absolute path. CouldNotRun if nothing can be written there, or another option names the same file."""
        from mha_core.errors import SpecError
        from mha_core.files.writing import check_different, check_output

        if self.dash and str(value) == "-":
            return Path(value)
        option = "the output" if param is None else param.opts[0]
        try:
            path = check_output(value, what=option)
            if ctx is not None:
                named: dict[str, Path] = ctx.meta.setdefault(f"{__name__}.files", {})
                named[option.lstrip("-")] = path
                check_different(**named)
        except SpecError as error:
            raise CouldNotRun(str(error)) from error
        return path


def gone(option: str, instead: str, *, is_flag: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for a command that had this option once: who gives it is told what to do `instead`."""

    def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            raise CouldNotRun(f"{option} is no longer there: {instead}")

    return click.option(option, is_flag=is_flag, hidden=True, expose_value=False, is_eager=True, callback=refuse)


def _switch_off(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    from mha_core.files.kept import OFF, SETTING

    if is_given:
        os.environ[SETTING] = OFF  # for the processes that this one starts, too


NO_COMPILE_CACHE = click.option(
    "--no-compile-cache",
    is_flag=True,
    expose_value=False,
    callback=_switch_off,
    help="Compile everything anew: neither read nor keep compiled programs (see mha cache).",
)


def backend_subjects(
    backends: list[Backend], dtypes: list[str], devices: tuple[str, ...], path: str | None = None
) -> tuple[list[BackendSubject], list[str]]:
    """Every backend on its default paths, or on `path`, in every dtype on every device; and a line for each dtype
    or path that one does not have.
    """
    from conformance.subjects.backend import BackendSubject, paths_to_check

    known = {device for backend in backends for device in backend.devices()}
    for device in devices:
        if device not in known:
            raise CouldNotRun(f"device {device!r} is not there (there are: {', '.join(sorted(known))})")
    known_paths = {known_path for backend in backends for known_path in backend.paths()}
    if path is not None and path not in known_paths:
        raise CouldNotRun(f"path {path!r} is not there (there are: {', '.join(sorted(known_paths))})")
    subjects, skipped = [], []
    for backend in backends:
        if path is not None and path not in backend.paths():
            skipped.append(f"left out: {backend.name} has no path {path!r} (it has: {', '.join(backend.paths())})")
            continue
        for device in backend.devices():
            if devices and device not in devices:
                continue
            for dtype in dtypes:
                if dtype not in backend.dtypes(device):
                    skipped.append(f"left out: {backend.name} does not compute in {dtype} on {device}")
                    continue
                subjects += [BackendSubject(backend, dtype, device, one) for one in paths_to_check(backend, path)]
    if backends and not subjects:
        raise CouldNotRun("\n".join(["nothing to run:", *skipped]))
    return subjects, skipped


def warn(errors: Console, lines: Iterable[str]) -> None:
    """Print lines in yellow as they are: names in them come from outside, and may look like markup."""
    for line in lines:
        errors.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)


def says(status: Status) -> Callable[[str], None]:
    """A function that shows a text on the status line as it is: names in it may look like markup."""
    from rich.text import Text

    return lambda text: status.update(Text(text))


def of_result(result: Result) -> str:
    """The text of a progress bar after a result."""
    return f"{result.subject} {result.dtype} {result.case[:32]}"


@contextmanager
def progress(
    console: Console, total: int, text: Callable[[Item], str], *, counted: bool = True
) -> Iterator[Callable[[Item], None]]:
    """A progress bar on stderr; yields a function that moves it on by one item and shows the item's text.

    Args:
        console: a console on stderr.
        total: the number of items.
        text: the text to show after an item, such as `of_result`.
        counted: whether the numbers of finished items and of all are shown.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    numbers = [MofNCompleteColumn()] if counted else []
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *numbers, TimeElapsedColumn())
    # On a terminal the bar takes the place of both streams, and puts back what it found, even if it is closed by now.
    with kept_surroundings(), Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def advance(item: Item) -> None:
            bar.update(task, advance=1, description=text(item))

        yield advance
