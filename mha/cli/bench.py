"""`mha bench`: ours beside what the frameworks ship, in time and memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mha.cli.common import COULD_NOT_RUN, EQUAL, CouldNotRun, OutputFile

if TYPE_CHECKING:
    from rich.console import Console

    from mha.bench.results import Results
    from mha.bench.settings import Setting
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
"""Parameters that --render has no use for."""


def _lengths(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Integers from "512,1024"."""
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of integers, such as 512,1024.") from None


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
def bench(
    context: click.Context,
    backend_names: tuple[str, ...],
    setting_names: tuple[str, ...],
    lengths: tuple[int, ...],
    direction: tuple[str, ...],
    dtypes: tuple[str, ...],
    devices: tuple[str, ...],
    seconds: float,
    threads: int | None,
    json_path: Path | None,
    folder: Path | None,
    details: bool,
    markdown: bool,
    render: Path | None,
) -> None:
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
        _check_folder(folder)
        if render is not None:
            _check_alone(context)
            results = files.read(render)
        else:
            requests, absent = _requests(
                backend_names, setting_names, lengths, direction, dtypes, devices, seconds, threads, folder is not None
            )
    except (SpecError, BackendError) as error:
        raise CouldNotRun(str(error)) from error
    if render is None:
        for line in absent:
            errors.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
        results = _measure(errors, requests)
        if json_path is not None:
            files.write(json_path, results)
    _show(console, results, details=details, markdown=markdown)
    if folder is not None:
        from mha.bench.plots import draw

        for path in draw(results, folder):
            errors.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    for line in files.failures(results):
        errors.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(COULD_NOT_RUN if files.failures(results) or not results["rows"] else EQUAL)


def _check_folder(folder: Path | None) -> None:
    """Refuse what plots can't be drawn into, or with, before anything runs."""
    if folder is None:
        return
    import importlib.util

    if not folder.is_dir():
        raise CouldNotRun(f"--plots needs an existing folder. There is no {folder}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise CouldNotRun("--plots needs matplotlib. Install it with: pip install 'mha-parity[bench]'")


def _check_alone(context: click.Context) -> None:
    """With --render nothing is measured, so nothing can be said about measuring."""
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in {*MEASURING, "direction"}
        and context.get_parameter_source(str(parameter.name)) == click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise CouldNotRun(f"--render measures nothing: leave out {', '.join(given)}")


def _requests(
    backend_names: tuple[str, ...],
    setting_names: tuple[str, ...],
    lengths: tuple[int, ...],
    directions: tuple[Any, ...],
    dtypes: tuple[str, ...],
    devices: tuple[str, ...],
    seconds: float,
    threads: int | None,
    plots: bool,
) -> tuple[list[Request], list[str]]:
    """What each worker is asked for; and a line for each framework that is not installed."""
    from mha.bench import machine
    from mha.bench.run import installed
    from mha.bench.settings import DIRECTIONS
    from mha.bench.worker import Request
    from mha_core.dtypes import check_dtype

    if seconds <= 0:
        raise CouldNotRun(f"--seconds must be more than 0. Got {seconds:g}.")
    if threads is not None and threads > machine.cores():
        raise CouldNotRun(f"--threads must be at most {machine.cores()}, the processors there are. Got {threads}.")
    settings = _settings(setting_names, lengths, plots)
    frameworks, absent = installed(backend_names)
    requests = [
        Request(
            name,
            settings,
            tuple(dict.fromkeys(directions)) or DIRECTIONS,
            tuple(check_dtype(dtype) for dtype in dict.fromkeys(dtypes)) or None,
            devices or None,
            seconds,
            threads or machine.cores(),
        )
        for name in frameworks
    ]
    return requests, absent


def _settings(names: tuple[str, ...], lengths: tuple[int, ...], plots: bool) -> tuple[Setting, ...]:
    """Those that were asked for, or all; each once, whether by its name or as a length."""
    from mha.bench import settings

    if names or lengths:
        chosen = [*map(settings.setting, names), *map(settings.of_length, lengths)]
    else:
        chosen = [*settings.SETTINGS, *(settings.of_length(length) for length in settings.LENGTHS if plots)]
    return tuple(dict.fromkeys(chosen))


def _measure(errors: Console, requests: list[Request]) -> Results:
    """Run the workers, with a progress bar."""
    from datetime import UTC, datetime

    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from mha.bench.results import to_results
    from mha.bench.run import passes, run_framework

    measured = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        total = sum(len(request.settings) * len(request.directions) * passes(request) for request in requests)
        task = bar.add_task("starting", total=total)

        def advance(row: dict[str, Any]) -> None:
            text = f"{row['framework']} {row['setting']['name']} {row['dtype']} {row['direction']}"
            bar.update(task, advance=1, description=text)

        for request in requests:
            measured.append(run_framework(request, advance))
            if measured[-1].absent:
                line = f"left out: {measured[-1].problem}"
                errors.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return to_results(measured, threads=requests[0].threads, seconds=requests[0].seconds, date=date)


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
