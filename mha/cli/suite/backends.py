"""`mha backends`: what is installed."""

from __future__ import annotations

import click

from conformance.subjects.quiet import quiet_stderr


@click.command()
def backends() -> None:
    """List the backends: versions, devices and dtypes, or why one can't be used."""
    from rich.console import Console
    from rich.table import Table

    from mha_core import BackendError
    from mha_core.backend import load, names

    table = Table("backend", "versions", "device", "dtypes")
    for name in names():
        try:
            with quiet_stderr():
                backend = load(name)
                backend.devices()
        except BackendError as error:
            table.add_row(name, f"[yellow]not usable:[/] {error}", "", "")
            continue
        versions = "\n".join(f"{package} {version}" for package, version in backend.versions().items())
        for position, device in enumerate(backend.devices()):
            shown = (name, versions) if position == 0 else ("", "")
            table.add_row(*shown, device, ", ".join(backend.dtypes(device)))
    Console().print(table)
