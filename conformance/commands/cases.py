"""`mha cases`: the table of cases."""

from __future__ import annotations

import click


@click.command()
def cases() -> None:
    """List the cases: their sizes, and what each one catches."""
    from rich.console import Console
    from rich.table import Table

    from conformance.cases import all_cases

    table = Table("case", "sizes", "catches")
    for case in all_cases():
        table.add_row(case.id, " ".join(f"{name}={size}" for name, size in case.sizes().items()), case.catches)
    Console().print(table)
