"""`mha cases`: the table of cases."""

from __future__ import annotations

import click


@click.command()
@click.option("--suite", type=click.Choice(["onnx"]), help="List ONNX's own test vectors instead.")
def cases(suite: str | None) -> None:
    """List the cases: their sizes, and what each one catches."""
    from rich.console import Console
    from rich.table import Table

    from conformance.cases.table import all_cases
    from mha.cli.common import CouldNotRun
    from mha_core import SpecError

    table = Table("case", "sizes", "catches")
    if suite is None:
        listed = list(all_cases())
    else:
        from conformance.onnx.suite import onnx_cases

        try:
            listed = [one.case for one in onnx_cases()]
        except SpecError as error:
            raise CouldNotRun(str(error)) from error
    for case in listed:
        table.add_row(case.id, " ".join(f"{name}={size}" for name, size in case.sizes().items()), case.catches)
    Console().print(table)
