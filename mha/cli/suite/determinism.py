"""`mha determinism`: check that repeated runs give equal bits."""

from __future__ import annotations

import sys

import click

from mha.cli.common import DIFFERENT, EQUAL, CouldNotRun, backend_subjects, load_backends


@click.command()
@click.option("--backend", "-b", "backend_names", multiple=True, help="Only this backend (repeatable).")
@click.option("--case", "-c", "patterns", multiple=True, help="Only cases of this id; wildcards work (repeatable).")
@click.option("--dtype", "-d", "dtypes", multiple=True, help="This dtype (repeatable). Default: float64 and float32.")
@click.option("--path", help="Run the backends on this path. Default: its first, and fast.")
def determinism(
    backend_names: tuple[str, ...], patterns: tuple[str, ...], dtypes: tuple[str, ...], path: str | None
) -> None:
    """Run every case twice in this process and once in a fresh one, forward and backward; compare the bits.

    Exit status: 0 the same, 1 different, 2 could not run.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from conformance.cases.table import select
    from conformance.determinism import repeatability
    from mha_core import BackendError, SpecError
    from mha_core.dtypes import check_dtype

    errors = Console(stderr=True)
    table = Table("backend", "dtype", "arrays", "same in one process", "same in a fresh process")
    differing: list[str] = []
    try:
        select(patterns)
        chosen = [check_dtype(dtype) for dtype in dtypes or ("float64", "float32")]
        backends, absent = load_backends(backend_names, compile_cache=False)
        subjects, skipped = backend_subjects(backends, chosen, ("cpu",), path)
        for line in (*absent, *skipped):
            errors.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
        for subject in subjects:
            with errors.status(escape(f"{subject.name} {subject.dtype}")):
                found = repeatability(subject.backend.name, subject.dtype, patterns, subject.path)
            same = [str(found.total - len(names)) for names in (found.in_process, found.fresh)]
            table.add_row(escape(subject.name), subject.dtype, str(found.total), *same)
            differing += [f"{subject.name} {subject.dtype} {name}" for name in {*found.in_process, *found.fresh}]
    except (SpecError, BackendError) as error:
        raise CouldNotRun(str(error)) from error
    Console().print(table)
    for name in sorted(differing):
        click.echo(f"different bits: {name}")
    sys.exit(DIFFERENT if differing else EQUAL)
