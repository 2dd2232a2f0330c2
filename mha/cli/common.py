"""What several commands share: exit statuses, loading backends, paths, the progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conformance.subjects.quiet import quiet_stderr
from conformance.subjects.surroundings import kept_surroundings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from conformance.judging.result import Result
    from conformance.subjects.backend import BackendSubject
    from mha_core.backend import Backend

EQUAL, DIFFERENT, COULD_NOT_RUN = 0, 1, 2
"""The exit statuses of every command that judges something."""


class CouldNotRun(click.ClickException):
    """Ends the command with its message and exit status 2."""

    exit_code = COULD_NOT_RUN


class OutputFile(click.ParamType):
    """An option's file to write: an absolute path from the start, and refused before anything runs.

    Args:
        dash: whether "-" stands for standard output.
    """

    name = "file"

    def __init__(self, *, dash: bool = False) -> None:
        self.dash = dash

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path. CouldNotRun if nothing can be written there, or another option of the command has the same file."""
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


def load_backends(requested: tuple[str, ...]) -> tuple[list[Backend], list[str]]:
    """The requested backends, or all installed ones; and a line for each that is not installed.

    A backend that was asked for and can't be used is an error, and so is an installed one that is broken.
    """
    from mha_core.backend import load, names
    from mha_core.errors import BackendNotInstalled

    backends, absent = [], []
    for name in dict.fromkeys(requested) or names():
        try:
            with quiet_stderr():
                backends.append(load(name))
                backends[-1].devices()
        except BackendNotInstalled as error:
            if requested:
                raise
            absent.append(f"left out: {error}")
    if not backends:
        raise CouldNotRun("\n".join(["no backend is installed:", *absent]))
    return backends, absent


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


def says(status: Status) -> Callable[[str], None]:
    """What shows a text on a status line as it is: names in it come from outside, and may look like markup."""
    from rich.text import Text

    return lambda text: status.update(Text(text))


@contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[Result], None]]:
    """A progress bar on stderr that a Result moves on by one."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # On a terminal the bar takes the place of both streams, and puts back what it found, even if it is closed by now.
    with kept_surroundings(), Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def advance(result: Result) -> None:
            bar.update(task, advance=1, description=f"{result.subject} {result.dtype} {result.case[:32]}")

        yield advance
