"""`mha backends`: what is installed."""

from __future__ import annotations

from mha.cli import options
from mha.cli.apart import Apart
from mha.cli.common import consoles


@options.command(Apart)
def backends(asked: Apart) -> None:
    """List the backends: versions, interpreter, devices and dtypes, or why one can't be used."""
    from rich.markup import escape
    from rich.table import Table

    from mha_core import BackendError
    from mha_core.backend import names

    settings = asked.settings()
    table = Table("backend", "versions", "device", "dtypes")
    table.columns[1].overflow = "fold"  # the path of an interpreter can be copied
    with asked.kept():
        for name in names():
            try:
                backend, where = asked.one_backend(name, settings)
            except BackendError as error:
                table.add_row(name, f"[yellow]not usable:[/] {escape(str(error))}", "", "")
                continue
            versions = "\n".join(f"{package} {version}" for package, version in backend.versions().items())
            for position, device in enumerate(backend.devices()):
                shown = (name, escape(f"{versions}\n{where}")) if position == 0 else ("", "")
                table.add_row(*shown, device, ", ".join(backend.dtypes(device)))
    consoles()[0].print(table)
