"""`mha bench`: measure time and memory of our layers and of those that the frameworks ship."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mha.cli import options
from mha.cli.common import CouldNotRun, consoles, finish, progress, say, warn
from mha.cli.options import Options, option

if TYPE_CHECKING:
    from rich.console import Console

    from mha.bench.results import Results
    from mha.bench.settings import Direction, Setting
    from mha.bench.worker import Request

MEASURING = {
    "backend_names",
    "setting_names",
    "lengths",
    "direction",
    "dtypes",
    "devices",
    "seconds",
    "threads",
    "json_path",
}
"""Names of the parameters that can't be given together with --render."""


def _lengths(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """The integers of a list such as "512,1024"."""
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of integers, such as 512,1024.") from None


class BenchOptions(Options):
    """The options of `mha bench`."""

    backend_names: tuple[str, ...] = options.backends("Only this backend and its peers (repeatable).")
    setting_names: tuple[str, ...] = options.several("--setting", "-s", help="Only this setting (repeatable).")
    lengths: tuple[int, ...] = option(
        "--length", callback=_lengths, help="Only (1, L, 512, 8), such as 512,1024, for the plots."
    )
    direction: tuple[Direction, ...] = option(
        "--direction", type=click.Choice(["forward", "both"]), multiple=True, help="Default: each of the two."
    )
    dtypes: tuple[str, ...] = options.dtypes("each setting's own.")
    devices: tuple[str, ...] = options.devices()
    seconds: float = option(
        "--seconds", default=0.4, show_default=True, help="Of measuring, for each layer in each setting."
    )
    threads: int | None = option(
        "--threads", type=click.IntRange(min=1), help="That each framework may use. Default: all processors."
    )
    json_path: Path | None = options.json_file("Also write the results to this file.")
    folder: Path | None = options.any_path("--plots", help="Also draw time and memory by length, here.")
    details: bool = options.flag("--details", "Print every contestant, not only ours against the best peer.")
    markdown: bool = options.flag("--markdown", "Print the tables as Markdown.")
    render: Path | None = options.any_path("--render", help="Measure nothing: show the results in this file.")


@options.command(BenchOptions)
def bench(asked: BenchOptions) -> None:
    """Measure ours beside every layer that its framework ships: time, and memory at the peak.

    One process for each framework, its contestants in turn. Without --setting and --length every setting
    is measured, and with --plots also the lengths from 512 to 8192.

    Exit status: 0, or 2 if something could not run.
    """
    from mha.bench import results as files

    console, errors = consoles()
    _check_folder(asked.folder)
    if asked.render is not None:
        _check_alone(click.get_current_context())
        results = files.read(asked.render)
    else:
        requests, absent = _requests(asked)
        warn(errors, absent)
        results = _measure(errors, requests)
        if asked.json_path is not None:
            files.write(asked.json_path, results)
    _show(console, results, details=asked.details, markdown=asked.markdown)
    if asked.folder is not None:
        from mha.bench.plots import draw

        say(errors, *(f"wrote {path}" for path in draw(results, asked.folder)))
    warn(errors, files.without_room(results))
    failures = files.failures(results)
    say(errors, *failures, style="red")
    finish(different=False, failed=failures or not results["rows"])


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
        if parameter.name in MEASURING
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
    say(console, table.head(results))
    for each in tables:
        console.print()
        if markdown:
            say(console, f"{each.title}\n\n{each.markdown()}")
        else:
            console.print(each.rich())
