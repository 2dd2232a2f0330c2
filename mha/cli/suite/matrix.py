"""`mha matrix`: the suite over several releases of the frameworks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mha.cli.common import COULD_NOT_RUN, DIFFERENT, EQUAL, CouldNotRun, OutputFile, as_one, says

if TYPE_CHECKING:
    from rich.status import Status

    from mha.matrix.request import ReleaseSet


@dataclass(frozen=True)
class MatrixOptions:
    """The options of `mha matrix`."""

    file: Path | None
    only: tuple[str, ...]
    tool: str | None
    again: bool
    remove: bool
    clear: bool
    silence: float
    json_path: Path | None
    markdown_path: Path | None


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--set", "only", multiple=True, help="Only the set of this name; wildcards work (repeatable).")
@click.option("--installer", "tool", type=click.Choice(["uv", "pip"]), help="Default: uv where it is installed.")
@click.option("--again", is_flag=True, help="Measure finished sets again.")
@click.option("--remove", is_flag=True, help="Remove each environment when its set is finished.")
@click.option("--clear", is_flag=True, help="Remove all environments and results, and do nothing else.")
@click.option(
    "--time-limit", "silence", default=300.0, show_default=True, help="Seconds without a result that end a set."
)
@click.option("--json", "json_path", type=OutputFile(), help="Also write the outcome to this file.")
@click.option("--markdown", "markdown_path", type=OutputFile(), help="Also write it as a page to this file.")
@as_one(MatrixOptions)
def matrix(asked: MatrixOptions) -> None:
    """Run the suite, and each framework's own layers, in every release that FILE lists; show what changed.

    FILE is TOML: [[set]] with name, requirements, backends and, if need be, python. Each set gets an environment
    in the user's cache; a finished set is read from there until this project's code changes.

    Exit status: 0 equal or as listed, 1 different, 2 could not run.
    """
    from conformance.subjects.load import check_time_limit
    from mha.matrix.environments.cache import Cache
    from mha_core.errors import SpecError

    try:
        check_time_limit(asked.silence)
        if asked.clear:
            if asked.file is not None:
                raise SpecError("--clear takes no FILE: it removes what was kept of all of them")
            cache = Cache()
            click.echo(f"removed {cache.clear() / 1e9:.2f} GB from {cache.root}")
            return
        if asked.file is None:
            raise SpecError("FILE is missing: a list of sets in TOML, such as examples/matrix.toml; or --clear")
        status = _run(asked, asked.file)
    except SpecError as error:
        raise CouldNotRun(str(error)) from error
    sys.exit(status)


def _run(asked: MatrixOptions, file: Path) -> int:
    """Run the sets, print and write the report; the exit status."""
    from rich.console import Console
    from rich.markup import escape

    from conformance.deviations import known as deviations
    from mha.matrix import report as reports
    from mha.matrix.environments.cache import Cache
    from mha.matrix.environments.make import installer
    from mha.matrix.environments.source import copied
    from mha.matrix.request import Request, read
    from mha.matrix.run import Options, run_set
    from mha.matrix.text import in_page, markdown, print_report
    from mha_core.files.writing import write_json, write_whole

    whole = read(file)
    request = Request(_chosen(whole.sets, asked.only), whole.cases, whole.dtypes)
    known = deviations.load()
    page = _page(asked.markdown_path)
    options = Options(installer(asked.tool or ""), asked.again, asked.remove, asked.silence)
    cache = Cache()
    cache.prepare()
    copy = copied(cache)
    console, errors = Console(), Console(stderr=True)
    rows: list[reports.Row] = []
    interrupted = False
    try:
        for one in request.sets:
            with errors.status(escape(one.name)) as status:
                for row in run_set(one, request, options, cache, copy, _say_of(status, one.name)):
                    rows.append(row)
                    line = f"{row.name}: {row.problem or f'{row.backend} measured'}"
                    style = "yellow" if row.problem else None
                    errors.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        interrupted = True
        errors.print(f"interrupted: {len(rows)} results are there, and kept", style="yellow")
    report = reports.make(request, rows, known)
    print_report(console, report)
    if asked.json_path is not None:
        write_json(asked.json_path, report.to_dict())
    if asked.markdown_path is not None:
        write_whole(asked.markdown_path, in_page(page, markdown(report, str(file))).encode())
    return DIFFERENT if report.different else COULD_NOT_RUN if report.incomplete or interrupted else EQUAL


def _page(path: Path | None) -> str:
    """The page that is there already; "" if none is."""
    if path is None or not path.is_file():
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CouldNotRun(f"{path} can't be read as the page to write into: {error}") from error


def _say_of(status: Status, name: str) -> Callable[[str], None]:
    """A function that shows on the status line what is being done for a set."""
    return lambda text: says(status)(f"{name}: {text}")


def _chosen(sets: Sequence[ReleaseSet], patterns: Sequence[str]) -> tuple[ReleaseSet, ...]:
    """The sets whose name matches one of the patterns; all of them without a pattern."""
    from fnmatch import fnmatchcase

    from mha_core.errors import SpecError

    for pattern in patterns:
        if not any(fnmatchcase(one.name, pattern) for one in sets):
            raise SpecError(f"--set {pattern!r} fits no set (there are: {', '.join(one.name for one in sets)})")
    return tuple(one for one in sets if not patterns or any(fnmatchcase(one.name, text) for text in patterns))
