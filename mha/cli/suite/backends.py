"""`mha backends`: what is installed."""

from __future__ import annotations

import click

from mha.cli.apart import Apart, worker_options


@click.command()
@worker_options
def backends(workers: int | None, pythons: tuple[str, ...]) -> None:
    """List the backends: versions, interpreter, devices and dtypes, or why one can't be used."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from mha.cli.common import CouldNotRun
    from mha_core import BackendError, SpecError
    from mha_core.backend import names

    apart = Apart(workers, pythons)
    try:
        settings = apart.settings()
    except SpecError as error:
        raise CouldNotRun(str(error)) from error
    table = Table("backend", "versions", "device", "dtypes")
    table.columns[1].overflow = "fold"  # the path of an interpreter can be copied
    with apart.kept():
        for name in names():
            try:
                backend, where = apart.one_backend(name, settings)
            except BackendError as error:
                table.add_row(name, f"[yellow]not usable:[/] {escape(str(error))}", "", "")
                continue
            versions = "\n".join(f"{package} {version}" for package, version in backend.versions().items())
            for position, device in enumerate(backend.devices()):
                shown = (name, escape(f"{versions}\n{where}")) if position == 0 else ("", "")
                table.add_row(*shown, device, ", ".join(backend.dtypes(device)))
    Console().print(table)
