"""`mha determinism`: the same bits from a rerun, in one process and in a fresh one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from conformance.commands.common import COULD_NOT_RUN, DIFFERENT, EQUAL, CouldNotRun, load_backends
from conformance.quiet import quiet_stderr

if TYPE_CHECKING:
    from conformance.determinism import Repeat
    from mha_core.backend import Backend


@click.command()
@click.option("--backend", "-b", "backend_names", multiple=True, help="Only this backend (repeatable).")
@click.option("--case", "-c", "patterns", multiple=True, help="Only cases of this id; wildcards work (repeatable).")
@click.option("--dtype", "-d", "dtypes", multiple=True, help="This dtype (repeatable). Default: float64 and float32.")
def determinism(backend_names: tuple[str, ...], patterns: tuple[str, ...], dtypes: tuple[str, ...]) -> None:
    """Run every case three times, once in a fresh process, and compare all stages and gradients bit by bit.

    Exit status: 0 all bits equal, 1 some differ, 2 could not run.
    """
    from rich.console import Console
    from rich.table import Table

    from conformance import cases
    from mha_core import BackendError, SpecError
    from mha_core.dtypes import check_dtype

    console, errors = Console(), Console(stderr=True)
    try:
        selected = cases.select(patterns)
        chosen = [check_dtype(dtype) for dtype in dtypes or ("float64", "float32")]
        backends, absent = load_backends(backend_names)
        runs, skipped = _runs(backends, chosen)
    except (SpecError, BackendError) as error:
        raise CouldNotRun(str(error)) from error
    for line in (*absent, *skipped):
        errors.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="underline")
    for column in ("", "same process", "fresh process", "arrays"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    offenders: list[str] = []
    failures: list[str] = []
    for backend, dtype in runs:
        try:
            repeats = _repeats(errors, backend, dtype, selected)
        except BackendError as error:
            failures.append(f"{backend.name} {dtype} did not run: {error}")
            continue
        total = len(repeats)
        here, fresh = (sum(not names for names in column) for column in zip(*map(_differences, repeats), strict=True))
        table.add_row(
            f"{backend.name} {dtype}", f"{here}/{total}", f"{fresh}/{total}", str(sum(r.arrays for r in repeats))
        )
        for repeat in repeats:
            for where, names in zip(("the same process", "a fresh process"), _differences(repeat), strict=True):
                if names:
                    case = f"{backend.name} {dtype}, case {repeat.case}"
                    offenders.append(f"{case}: other bits in {where}: {', '.join(names)}")
    console.print("Cases in which every stage and every gradient has the same bits again", style="bold")
    console.print(table)
    for line in (*offenders, *failures):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not offenders and not failures:
        console.print("\nEvery bit is the same again.", highlight=False)
    sys.exit(DIFFERENT if offenders else COULD_NOT_RUN if failures else EQUAL)


def _runs(backends: list[Backend], dtypes: list[str]) -> tuple[list[tuple[Backend, str]], list[str]]:
    """Every backend in every dtype that it has on a CPU; and a line for each that it does not have."""
    runs, skipped = [], []
    for backend in backends:
        for dtype in dtypes:
            if dtype in backend.dtypes("cpu"):
                runs.append((backend, dtype))
            else:
                skipped.append(f"left out: {backend.name} does not compute in {dtype} on cpu")
    if not runs:
        raise CouldNotRun("\n".join(["nothing to run:", *skipped]))
    return runs, skipped


def _repeats(errors, backend: Backend, dtype: str, selected) -> list[Repeat]:
    from conformance.determinism import check_determinism

    with errors.status(f"{backend.name} {dtype}: fresh process") as status, quiet_stderr():
        return list(
            check_determinism(backend, dtype, selected, lambda id: status.update(f"{backend.name} {dtype} {id}"))
        )


def _differences(repeat: Repeat) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return repeat.same_process, repeat.fresh_process
