"""`mha matrix`: the suite over several releases of the frameworks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NoReturn

from mha.cli import options
from mha.cli.common import CouldNotRun, consoles, finish, say, says, warn, write_asked
from mha.cli.options import gone

if TYPE_CHECKING:
    from rich.status import Status

    from mha.matrix.record import Row
    from mha.matrix.report import Report
    from mha.matrix.request import ReleaseSet, Request
    from mha.matrix.run import Options


class MatrixOptions(options.Options):
    """The argument and options of `mha matrix`."""

    file: Path = options.path_argument()
    only: tuple[str, ...] = options.several("--set", help="Only the set of this name; wildcards work (repeatable).")
    again: bool = options.flag("--again", "Measure finished sets again.")
    time_limit: float = options.time_limit("a layer")
    json_path: Path | None = options.json_file("Also write the outcome to this file.")
    markdown_path: Path | None = options.output_file("--markdown", help="Also write it as a page to this file.")


@options.command(MatrixOptions)
@gone("--installer", "uv makes the environments")
@gone("--remove", "an environment is always removed; uv keeps what it was made of (`uv cache`)", is_flag=True)
@gone("--clear", "`mha cache clear` removes what is kept of finished sets", is_flag=True)
def matrix(asked: MatrixOptions) -> None:
    """Run the suite, and each framework's own layers, in every release that FILE lists; show what changed.

    FILE is TOML: [[set]] with name, requirements, backends and, if need be, python. uv makes an environment for each
    set; what came out for a finished set is kept until this project's code changes (see mha cache).

    Exit status: 0 equal or as listed, 1 different, 2 could not run.
    """
    from conformance.deviations import known as deviations
    from conformance.subjects.load import check_time_limit
    from mha.matrix.report import make
    from mha.matrix.request import Request, read
    from mha.matrix.run import Options, copy_project, find_uv

    check_time_limit(asked.time_limit)
    whole = read(asked.file)
    request = Request(_chosen(whole.sets, asked.only), whole.cases, whole.dtypes)
    known = deviations.load()
    page = _page(asked.markdown_path)
    uv = find_uv()
    with TemporaryDirectory(prefix="mha-matrix-", ignore_cleanup_errors=True) as folder:
        copy_project(Path(folder))
        rows, interrupted = _measured(request, Options(uv, Path(folder), asked.time_limit, asked.again))
    _show(asked, make(request, rows, known), page, interrupted)


def _measured(request: Request, how: Options) -> tuple[list[Row], bool]:
    """The rows of all sets, or those up to an interrupt by the user; and whether there was one."""
    from rich.markup import escape

    from mha.matrix.run import run_set

    _, errors = consoles()
    rows: list[Row] = []
    try:
        for one in request.sets:
            with (
                errors.status(escape(one.name)) as status,
                closing(run_set(one, request, how, _say_of(status, one.name))) as found,
            ):
                for row in found:
                    rows.append(row)
                    line = f"{row.name}: {row.problem or f'{row.backend} measured'}"
                    say(errors, line, style="yellow" if row.problem else None)
    except KeyboardInterrupt:
        warn(errors, [f"interrupted: {len(rows)} results are there, and kept"])
        return rows, True
    return rows, False


def _show(asked: MatrixOptions, report: Report, page: str, interrupted: bool) -> NoReturn:
    """Print and write the report, and end the command."""
    from mha.matrix.report import in_page, markdown, print_report
    from mha_core.files.writing import write_whole

    print_report(consoles()[0], report)
    write_asked(asked.json_path, report.to_dict)
    if asked.markdown_path is not None:
        write_whole(asked.markdown_path, in_page(page, markdown(report, str(asked.file))).encode())
    finish(report.different, report.incomplete or interrupted)


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
