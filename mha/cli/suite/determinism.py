"""`mha determinism`: check that repeated runs give equal bits."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

import click

from mha.cli.apart import Apart, worker_options
from mha.cli.common import COULD_NOT_RUN, DIFFERENT, EQUAL, CouldNotRun, backend_subjects, progress, warn

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.determinism import Repeatability
    from conformance.subjects.backend import BackendSubject
    from conformance.workers.interpreters import Settings


@click.command()
@click.option("--backend", "-b", "backend_names", multiple=True, help="Only this backend (repeatable).")
@click.option("--case", "-c", "patterns", multiple=True, help="Only cases of this id; wildcards work (repeatable).")
@click.option("--dtype", "-d", "dtypes", multiple=True, help="This dtype (repeatable). Default: float64 and float32.")
@click.option("--path", help="Run the backends on this path. Default: its first, and fast.")
@worker_options
def determinism(
    backend_names: tuple[str, ...],
    patterns: tuple[str, ...],
    dtypes: tuple[str, ...],
    path: str | None,
    workers: int | None,
    pythons: tuple[str, ...],
) -> None:
    """Run every case twice in one fresh process and once in another, forward and backward; compare the bits.

    Exit status: 0 the same, 1 different, 2 could not run.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from conformance.cases.table import select
    from mha_core import BackendError, SpecError
    from mha_core.dtypes import check_dtype

    errors = Console(stderr=True)
    table = Table("backend", "dtype", "arrays", "same in one process", "same in a fresh process")
    differing: list[str] = []
    # All of it is done in other processes, so 0 stands for one at a time.
    apart = Apart(None if workers is None else max(1, workers), pythons)
    if apart.scheduler is not None:
        raise CouldNotRun("mha determinism starts its processes on this machine: leave out --scheduler")
    try:
        with apart.kept():
            select(patterns)
            chosen = [check_dtype(dtype) for dtype in dtypes or ("float64", "float32")]
            settings = apart.settings()
            backends, absent, broken = apart.backends(backend_names, settings)
            subjects, skipped = backend_subjects(backends, chosen, ("cpu",), path)
            warn(errors, [*absent, *broken, *skipped])
            for subject, found in zip(
                subjects, _found(errors, subjects, patterns, settings, apart.workers), strict=True
            ):
                same = [str(found.total - len(names)) for names in (found.in_process, found.fresh)]
                table.add_row(escape(subject.name), subject.dtype, str(found.total), *same)
                differing += [f"{subject.name} {subject.dtype} {name}" for name in {*found.in_process, *found.fresh}]
    except (SpecError, BackendError) as error:
        raise CouldNotRun(str(error)) from error
    Console().print(table)
    for name in sorted(differing):
        click.echo(f"different bits: {name}")
    sys.exit(DIFFERENT if differing else COULD_NOT_RUN if broken else EQUAL)


def _found(
    errors: Console,
    subjects: list[BackendSubject],
    patterns: tuple[str, ...],
    settings: Settings,
    workers: int | None,
) -> list[Repeatability]:
    """What each subject does, so many processes at a time; the paths of a backend share them."""
    from conformance.determinism import Runs, repeatability
    from conformance.workers.execute import end_idle
    from conformance.workers.local import Local
    from conformance.workers.process import end_all

    end_idle()  # those that said what a backend has
    asked = [
        Runs(backend, dtype, tuple(subject.path for subject in group), patterns, settings)
        for (backend, dtype), group in groupby(subjects, key=_kind)
    ]
    executor = Local(workers)
    finished = False
    try:
        with progress(errors, len(subjects), _of_subject) as advance:
            found = []
            for subject, each in zip(subjects, repeatability(asked, executor), strict=True):
                found.append(each)
                advance(subject)
        finished = True
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        if not finished:
            end_all()
    return found


def _kind(subject: BackendSubject) -> tuple[str, str]:
    return subject.backend.name, subject.dtype


def _of_subject(subject: BackendSubject) -> str:
    return f"{subject.name} {subject.dtype}"
