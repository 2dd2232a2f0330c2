"""The `mha` command. Every import that costs time waits until a command needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conformance.quiet import quiet_stderr

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.runner import BackendSubject, Result
    from mha_core.backend import Backend

EQUAL, DIFFERENT, COULD_NOT_RUN = 0, 1, 2


class CouldNotRun(click.ClickException):
    """Ends the command with its message and exit status 2."""

    exit_code = COULD_NOT_RUN


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mha-parity")
def main() -> None:
    """Multi-head attention, defined once: check that implementations compute the same numbers."""
    # What TensorFlow would log while it runs.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@main.command()
@click.option("--backend", "-b", "backend_names", multiple=True, help="Only this backend (repeatable).")
@click.option("--case", "-c", "patterns", multiple=True, help="Only cases of this id; wildcards work (repeatable).")
@click.option("--dtype", "-d", "dtypes", multiple=True, help="This dtype (repeatable). Default: float64 and float32.")
@click.option("--device", "devices", multiple=True, help="Only this device, such as cpu or gpu:0 (repeatable).")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write every result to this file.")
def check(
    backend_names: tuple[str, ...],
    patterns: tuple[str, ...],
    dtypes: tuple[str, ...],
    devices: tuple[str, ...],
    json_path: Path | None,
) -> None:
    """Run every case on every installed backend and compare all stages with the float64 reference.

    Exit status: 0 equal, 1 different, 2 could not run.
    """
    from rich.console import Console

    from conformance import cases, report
    from conformance.runner import run_all
    from mha_core import BackendError, SpecError
    from mha_core.dtypes import check_dtype

    console, errors = Console(), Console(stderr=True)
    try:
        selected = cases.select(patterns)
        chosen_dtypes = [check_dtype(dtype) for dtype in dtypes or ("float64", "float32")]
        _check_writable(json_path)
        backends, absent = _load(backend_names)
        subjects, skipped = _subjects(backends, chosen_dtypes, devices)
    except (SpecError, BackendError) as error:
        raise CouldNotRun(str(error)) from error
    for line in (*absent, *skipped):
        errors.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)

    with _progress(errors, total=len(selected) * len(subjects)) as advance:
        results = list(run_all(selected, subjects, advance))
    report.print_results(console, results)
    if json_path is not None:
        versions = {backend.name: backend.versions() for backend in backends}
        report.write_json(json_path, report.to_json(results, versions))
    statuses = {result.status for result in results}
    sys.exit(DIFFERENT if "different" in statuses else COULD_NOT_RUN if "failed" in statuses else EQUAL)


@main.command()
def backends() -> None:
    """List the backends: versions, devices and dtypes, or why one can't be used."""
    from rich.console import Console
    from rich.table import Table

    from mha_core import BackendError
    from mha_core.backend import load, names

    table = Table("backend", "versions", "device", "dtypes")
    for name in names():
        try:
            with quiet_stderr():
                backend = load(name)
                backend.devices()
        except BackendError as error:
            table.add_row(name, f"[yellow]not usable:[/] {error}", "", "")
            continue
        versions = "\n".join(f"{package} {version}" for package, version in backend.versions().items())
        for position, device in enumerate(backend.devices()):
            shown = (name, versions) if position == 0 else ("", "")
            table.add_row(*shown, device, ", ".join(backend.dtypes(device)))
    Console().print(table)


@main.command("cases")
def list_cases() -> None:
    """List the cases: their sizes, and what each one catches."""
    from rich.console import Console
    from rich.table import Table

    from conformance.cases import all_cases

    table = Table("case", "sizes", "catches")
    for case in all_cases():
        table.add_row(case.id, " ".join(f"{name}={size}" for name, size in case.sizes().items()), case.catches)
    Console().print(table)


def _check_writable(path: Path | None) -> None:
    """Refuse a report path before anything runs, not after."""
    if path is None:
        return
    if path.is_dir():
        raise CouldNotRun(f"--json must name a file. Got the folder {path}.")
    if not path.parent.is_dir():
        raise CouldNotRun(f"--json needs an existing folder. There is no {path.parent}.")
    if not os.access(path.parent, os.W_OK):
        raise CouldNotRun(f"--json needs a folder that can be written to. Got {path.parent}.")


def _load(requested: tuple[str, ...]) -> tuple[list[Backend], list[str]]:
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


def _subjects(
    backends: list[Backend], dtypes: list[str], devices: tuple[str, ...]
) -> tuple[list[BackendSubject], list[str]]:
    """Every backend in every dtype on every device; and a line for each dtype that one does not have."""
    from conformance.runner import BackendSubject

    known = {device for backend in backends for device in backend.devices()}
    for device in devices:
        if device not in known:
            raise CouldNotRun(f"device {device!r} is not there (there are: {', '.join(sorted(known))})")
    subjects, skipped = [], []
    for backend in backends:
        for device in backend.devices():
            if devices and device not in devices:
                continue
            for dtype in dtypes:
                if dtype in backend.dtypes(device):
                    subjects.append(BackendSubject(backend, dtype, device))
                else:
                    skipped.append(f"left out: {backend.name} does not compute in {dtype} on {device}")
    if not subjects:
        raise CouldNotRun("\n".join(["nothing to run:", *skipped]))
    return subjects, skipped


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[Result], None]]:
    """A progress bar on stderr that a Result moves on by one."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def advance(result: Result) -> None:
            bar.update(task, advance=1, description=f"{result.subject} {result.dtype} {result.case}")

        yield advance
