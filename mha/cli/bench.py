"""`mha bench`: measure time and memory of our layers and of those that the frameworks ship."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mha.cli.common import COULD_NOT_RUN, EQUAL, CouldNotRun, OutputFile, as_one, progress, warn

if TYPE_CHECKING:
    from rich.console import Console

    from mha.bench.results import Results
    from mha.bench.settings import Direction, Setting
    from mha.bench.worker import Request

MEASURING = (
    "backend_names",
    "setting_names",
    "lengths",
    "directions",
    "dtypes",
    "devices",
    "seconds",
    "threads",
    "json_path",
)
"""Names of the parameters that can't be given together with --render."""


def _lengths(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """The integers of a list such as "512,1024"."""
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of integers, such as 512,1024.") from None


@dataclass(frozen=True)
class BenchOptions:
    """The options of `mha bench`."""

    backend_names: tuple[str, ...]
    setting_names: tuple[str, ...]
    lengths: tuple[int, ...]
    direction: tuple[Direction, ...]
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    seconds: float
    threads: int | None
    json_path: Path | None
    folder: Path | None
    details: bool
    markdown: bool
    render: Path | None


@click.command()
@click.option("--backend", "-b", "backend_names", multiple=True, help="Only this backend and its peers (repeatable).")
@click.option("--setting", "-s", "setting_names", multiple=True, help="Only this setting (repeatable).")
@click.option("--length", "lengths", callback=_lengths, help="Only (1, L, 512, 8), such as 512,1024, for the plots.")
@click.option("--direction", type=click.Choice(["forward", "both"]), multiple=True, help="Default: each of the two.")
@click.option("--dtype", "-d", "dtypes", multiple=True, help="This dtype (repeatable). Default: each setting's own.")
@click.option("--device", "devices", multiple=True, help="Only this device, such as cpu or gpu:0 (repeatable).")
@click.option("--seconds", default=0.4, show_default=True, help="Of measuring, for each layer in each setting.")
@click.option("--threads", type=click.IntRange(min=1), help="That each framework may use. Default: all processors.")
@click.option("--json", "json_path", type=OutputFile(), help="Also write the results to this file.")
@click.option("--plots", "folder", type=click.Path(path_type=Path), help="Also draw time and memory by length, here.")
@click.option("--details", is_flag=True, help="Print every contestant, not only ours against the best peer.")
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown.")
@click.option("--render", type=click.Path(path_type=Path), help="Measure nothing: show the results in this file.")
@click.pass_context
@as_one(BenchOptions)
def bench(context: click.Context, asked: BenchOptions) -> None:
    """Measure ours beside every layer that its framework ships: time, and memory at the peak.

    One process for each framework, its contestants in turn. Without --setting and --length every setting
    is measured, and with --plots also the lengths from 512 to 8192.

    Exit status: 0, or 2 if something could not run.
    """
    from rich.console import Console

    from mha.bench import results as files
    from mha_core import BackendError, SpecError

    console, errors = Console(), Console(stderr=True)
    absent: list[str] = []
    try:
        _check_folder(asked.folder)
        if asked.render is not None:
            _check_alone(context)
            results = files.read(asked.render)
        else:
            requests, absent = _requests(asked)
    except (SpecError, BackendError) as error:
        raise CouldNotRun(str(error)) from error
    if asked.render is None:
        warn(errors, absent)
        results = _measure(errors, requests)
        if asked.json_path is not None:
            files.write(asked.json_path, results)
    _show(console, results, details=asked.details, markdown=asked.markdown)
    if asked.folder is not None:
        from mha.bench.plots import draw

        for path in draw(results, asked.folder):
            errors.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    warn(errors, files.without_room(results))
    for line in files.failures(results):
        errors.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(COULD_NOT_RUN if files.failures(results) or not results["rows"] else EQUAL)


def _check_folder(folder: Path | None) -> None:
    """Raise CouldNotRun if the folder for plots or matplotlib is missing, before anything runs."""
    if folder is None:
        return
    import importlib.util

    if not folder.is_dir():
        raise CouldNotRun(f"--plots needs an existing folder. There is no {folder}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise CouldNotRun("--plots needs matplotlib. Install it with: pip install 'mha-parity[bench]'")


def _check_alone(context: click.Context) -> None:
    """Raise CouldNotRun if options for measuring are given with --render, which measures nothing."""
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in {*MEASURING, "direction"}
        and context.get_parameter_source(str(parameter.name)) == click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise CouldNotRun(f"--render measures nothing: leave out {', '.join(given)}")


def _requests(asked: BenchOptions) -> tuple[list[Request], list[str]]:
    """The Request for each worker; and a line for each framework that is not installed."""
    from mha.bench import machine
    from mha.bench.run import installed
    from mha.bench.settings import DIRECTIONS
    from mha.bench.worker import Request
    from mha_core.dtypes import check_dtype

    if asked.seconds <= 0:
        raise CouldNotRun(f"--seconds must be more than 0. Got {asked.seconds:g}.")
    if asked.threads is not None and asked.threads > machine.cores():
        most = f"--threads must be at most {machine.cores()}, the processors there are"
        raise CouldNotRun(f"{most}. Got {asked.threads}.")
    settings = _settings(asked.setting_names, asked.lengths, asked.folder is not None)
    frameworks, absent = installed(asked.backend_names)
    requests = [
        Request(
            name,
            settings,
            tuple(dict.fromkeys(asked.direction)) or DIRECTIONS,
            tuple(check_dtype(dtype) for dtype in dict.fromkeys(asked.dtypes)) or None,
            asked.devices or None,
            asked.seconds,
            asked.threads or machine.cores(),
        )
        for name in frameworks
    ]
    return requests, absent


def _settings(names: tuple[str, ...], lengths: tuple[int, ...], plots: bool) -> tuple[Setting, ...]:
    """The settings that were asked for by name or by length, each once; all if none were."""
    from mha.bench import settings

    if names or lengths:
        chosen = [*map(settings.setting, names), *map(settings.of_length, lengths)]
    else:
        chosen = [*settings.SETTINGS, *(settings.of_length(length) for length in settings.LENGTHS if plots)]
    return tuple(dict.fromkeys(chosen))


def _measure(errors: Console, requests: list[Request]) -> Results:
    """Run the workers, with a progress bar."""
    from datetime import UTC, datetime

    from mha.bench.results import to_results
    from mha.bench.run import passes, run_framework

    measured = []
    total = sum(len(request.settings) * len(request.directions) * passes(request) for request in requests)
    with progress(errors, total, _of_row, counted=False) as advance:
        for request in requests:
            measured.append(run_framework(request, advance))
            if measured[-1].absent:
                warn(errors, [f"left out: {measured[-1].problem}"])
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return to_results(measured, threads=requests[0].threads, seconds=requests[0].seconds, date=date)


def _of_row(row: dict[str, Any]) -> str:
    """The text of the progress bar after a row."""
    return f"{row['framework']} {row['setting']['name']} {row['dtype']} {row['direction']}"


def _show(console: Console, results: Results, *, details: bool, markdown: bool) -> None:
    from mha.bench import table

    tables = table.details(results) if details else table.summary(results)
    console.print(table.head(results), markup=False, highlight=False, soft_wrap=True)
    for each in tables:
        console.print()
        if markdown:
            text = f"{each.title}\n\n{each.markdown()}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(each.rich())
