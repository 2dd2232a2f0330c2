"""`mha check`: run the cases and compare."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from conformance.commands.common import (
    COULD_NOT_RUN,
    DIFFERENT,
    EQUAL,
    CouldNotRun,
    backend_subjects,
    check_writable,
    load_backends,
    progress,
)


@click.command()
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
        check_writable("--json", json_path)
        backends, absent = load_backends(backend_names)
        subjects, skipped = backend_subjects(backends, chosen_dtypes, devices)
    except (SpecError, BackendError) as error:
        raise CouldNotRun(str(error)) from error
    for line in (*absent, *skipped):
        errors.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)

    with progress(errors, total=len(selected) * len(subjects)) as advance:
        results = list(run_all(selected, subjects, advance))
    report.print_results(console, results)
    if json_path is not None:
        versions = {backend.name: backend.versions() for backend in backends}
        report.write_json(json_path, report.to_json(results, versions))
    statuses = {result.status for result in results}
    sys.exit(DIFFERENT if "different" in statuses else COULD_NOT_RUN if "failed" in statuses else EQUAL)
