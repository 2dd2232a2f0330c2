"""`mha cases`: the table of cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from conformance.cases.sequence import Asked


@click.command()
@click.option("--suite", type=click.Choice(["onnx"]), help="List ONNX's own test vectors instead.")
def cases(suite: str | None) -> None:
    """List the cases: their sizes, and what each one catches."""
    from rich.console import Console
    from rich.table import Table

    from conformance.cases.table import select_asked

    table = Table("case", "sizes", "catches")
    if suite is None:
        listed: list[Asked] = select_asked(())
    else:
        from conformance.onnx.suite import onnx_cases

        listed = [one.case for one in onnx_cases()]
    for case in listed:
        table.add_row(case.id, " ".join(f"{name}={size}" for name, size in case.sizes().items()), case.catches)
    Console().print(table)
