"""Parts of several commands: exit statuses, what is printed and written, the progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from conformance.subjects.in_time import kept_surroundings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from conformance.judging.result import Result

EQUAL, DIFFERENT, COULD_NOT_RUN = 0, 1, 2
"""The exit statuses of every command that judges something."""

Item = TypeVar("Item")


class CouldNotRun(click.ClickException):
    """An error that ends the command with its message and exit status 2."""

    exit_code = COULD_NOT_RUN


def finish(different: object, failed: object = False) -> NoReturn:
    """End the command with exit status 1 if something is different, else 2 if something failed, else 0."""
    raise SystemExit(_status(different, failed))


def _status(different: object, failed: object) -> int:
    return DIFFERENT if different else COULD_NOT_RUN if failed else EQUAL


def status_by(results: Sequence[Result], also: Sequence[Result] = (), *, failed: bool = False) -> int:
    """Return the exit status for results: 1 if one is different, else 2 if one did not run or nothing was judged.

    Args:
        results: the results that the command is about.
        also: further results, of which only those that differ or failed change the status.
        failed: whether anything else could not run, or results are missing.
    """
    statuses = {result.status for result in (*results, *also)}
    nothing_judged = not {result.status for result in results} & {"equal", "deviates", "different"}
    return _status("different" in statuses, failed or "failed" in statuses or nothing_judged)


def consoles() -> tuple[Console, Console]:
    """Consoles on standard output and on standard error."""
    from rich.console import Console

    return Console(), Console(stderr=True)


def say(console: Console, *lines: str, style: str | None = None) -> None:
    """Print lines without interpreting rich markup, since names in them may contain brackets."""
    for line in lines:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def warn(errors: Console, lines: Iterable[str]) -> None:
    """Print lines in yellow as they are."""
    say(errors, *lines, style="yellow")


def show_rows(console: Console, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print an aligned table if it fits into the width of the console; else print each row as a paragraph.

    A paragraph begins with the row's first cell. The other cells follow, each after its header. No cell is cut.

    Args:
        headers: one for each column.
        rows: the cells of each row; rich markup in them is not interpreted.
    """
    from textwrap import TextWrapper

    held = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *held, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) <= console.width:
        header, *found = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in (headers, *held))
        say(console, header, style="bold")
        say(console, *found)
        return
    lines = TextWrapper(console.width, "  ", "    ", break_long_words=False, break_on_hyphens=False)
    for first, *others in held:
        say(console, first, style="bold")
        for header, cell in zip(headers[1:], others, strict=True):
            say(console, *lines.wrap(f"{header}: {cell}" if cell else ""))


def says(status: Status) -> Callable[[str], None]:
    """Return a function that shows a text on the status line. Rich markup in the text is not interpreted."""
    from rich.text import Text

    return lambda text: status.update(Text(text))


def write_asked(path: Path | None, value: Callable[[], Any]) -> None:
    """Write `value()` as JSON to the file `path`, which --json names. Do nothing if `path` is None."""
    from mha_core.files.writing import write_json

    if path is not None:
        write_json(path, value())


def of_result(result: Result) -> str:
    """Return the text of a progress bar after a result."""
    return f"{result.subject} {result.dtype} {result.case[:32]}"


@contextmanager
def progress(console: Console, total: int, text: Callable[[Item], str]) -> Iterator[Callable[[Item], None]]:
    """Return a context with a progress bar on stderr.

    The context yields a function that moves the bar on by one item and shows the item's text.

    Args:
        console: a console on stderr.
        total: the number of items.
        text: a function that returns the text to show for an item.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # On a terminal the bar takes the place of both streams, and puts back what it found, even if it is closed by now.
    with kept_surroundings(), Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def advance(item: Item) -> None:
            bar.update(task, advance=1, description=text(item))

        yield advance
