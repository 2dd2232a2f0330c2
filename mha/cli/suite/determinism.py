"""`mha determinism`: check that repeated runs give equal bits."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import click

from mha.cli import options
from mha.cli.apart import Apart, backend_subjects
from mha.cli.common import CouldNotRun, consoles, finish, progress, warn
from mha.cli.options import option

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.determinism import Repeatability
    from conformance.subjects.backend import BackendSubject
    from conformance.workers.interpreters import Settings


class DeterminismOptions(Apart):
    """The options of `mha determinism`."""

    backend_names: tuple[str, ...] = options.backends()
    patterns: tuple[str, ...] = options.cases()
    dtypes: tuple[str, ...] = options.dtypes()
    path: str | None = option("--path", help="Run the backends on this path. Default: its first, and fast.")

    @property
    def in_this_process(self) -> bool:
        """False: all of it is done in other processes, so --workers 0 stands for one at a time."""
        return False


@options.command(DeterminismOptions)
def determinism(asked: DeterminismOptions) -> None:
    """Run every case twice in one fresh process and once in another, forward and backward; compare the bits.

    Exit status: 0 the same, 1 different, 2 could not run.
    """
    from rich.markup import escape
    from rich.table import Table

    from conformance.cases.table import select
    from mha_core.dtypes import check_dtype

    console, errors = consoles()
    table = Table("backend", "dtype", "arrays", "same in one process", "same in a fresh process")
    differing: list[str] = []
    if asked.scheduler is not None:
        raise CouldNotRun("mha determinism starts its processes on this machine: leave out --scheduler")
    with asked.kept():
        select(asked.patterns)
        dtypes = [check_dtype(dtype) for dtype in asked.dtypes or ("float64", "float32")]
        settings = asked.settings()
        backends, absent, broken = asked.backends(asked.backend_names, settings)
        subjects, skipped = backend_subjects(backends, dtypes, ("cpu",), asked.path)
        warn(errors, [*absent, *broken, *skipped])
        for subject, found in zip(subjects, _found(errors, subjects, asked, settings), strict=True):
            same = [str(found.total - len(names)) for names in (found.in_process, found.fresh)]
            table.add_row(escape(subject.name), subject.dtype, str(found.total), *same)
            differing += [f"{subject.name} {subject.dtype} {name}" for name in {*found.in_process, *found.fresh}]
    console.print(table)
    for name in sorted(differing):
        click.echo(f"different bits: {name}")
    finish(differing, broken)


def _found(
    errors: Console, subjects: list[BackendSubject], asked: DeterminismOptions, settings: Settings
) -> list[Repeatability]:
    """What each subject does, so many processes at a time; the paths of a backend share them."""
    from conformance.determinism import Runs, repeatability
    from conformance.workers.execute import end_idle
    from conformance.workers.local import Local
    from conformance.workers.process import end_all

    end_idle()  # those that said what a backend has
    runs = [
        Runs(backend, dtype, tuple(subject.path for subject in group), asked.patterns, settings)
        for (backend, dtype), group in groupby(subjects, key=lambda one: (one.backend.name, one.dtype))
    ]
    executor = Local(None if asked.workers is None else max(1, asked.workers))
    finished = False
    try:
        with progress(errors, len(subjects), _of_subject) as advance:
            found = []
            for subject, each in zip(subjects, repeatability(runs, executor), strict=True):
                found.append(each)
                advance(subject)
        finished = True
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        if not finished:
            end_all()
    return found


def _of_subject(subject: BackendSubject) -> str:
    """The text of the progress bar after a subject."""
    return f"{subject.name} {subject.dtype}"
