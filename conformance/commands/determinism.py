"""`mha determinism`: the same bits again?"""

from __future__ import annotations

import sys

import click

from conformance.commands.common import DIFFERENT, EQUAL, CouldNotRun, load_backends


@click.command()
@click.option("--backend", "-b", "backend_names", multiple=True, help="Only this backend (repeatable).")
@click.option("--case", "-c", "patterns", multiple=True, help="Only cases of this id; wildcards work (repeatable).")
@click.option("--dtype", "-d", "dtypes", multiple=True, help="This dtype (repeatable). Default: float64 and float32.")
def determinism(backend_names: tuple[str, ...], patterns: tuple[str, ...], dtypes: tuple[str, ...]) -> None:
    """Run every case twice in this process and once in a fresh one, forward and backward; compare the bits.

    Exit status: 0 the same, 1 different, 2 could not run.
    """
    from rich.console import Console
    from rich.table import Table

    from conformance.cases import select
    from conformance.determinism import repeatability
    from mha_core import BackendError, SpecError
    from mha_core.dtypes import check_dtype

    errors = Console(stderr=True)
    table = Table("backend", "dtype", "arrays", "same in one process", "same in a fresh process")
    differing: list[str] = []
    try:
        select(patterns)
        chosen = [check_dtype(dtype) for dtype in dtypes or ("float64", "float32")]
        backends, left_out = load_backends(backend_names)
        for line in left_out:
            errors.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
        for backend in backends:
            for dtype in chosen:
                if dtype not in backend.dtypes("cpu"):
                    errors.print(f"left out: {backend.name} does not compute in {dtype} on cpu", style="yellow")
                    continue
                with errors.status(f"{backend.name} {dtype}"):
                    found = repeatability(backend.name, dtype, patterns)
                same = [str(found.total - len(names)) for names in (found.in_process, found.fresh)]
                table.add_row(backend.name, dtype, str(found.total), *same)
                differing += [f"{backend.name} {dtype} {name}" for name in {*found.in_process, *found.fresh}]
    except (SpecError, BackendError) as error:
        raise CouldNotRun(str(error)) from error
    Console().print(table)
    for name in sorted(differing):
        click.echo(f"different bits: {name}")
    sys.exit(DIFFERENT if differing else EQUAL)
