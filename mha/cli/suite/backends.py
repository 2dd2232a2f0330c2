"""`mha check --installed`: the backends that there are."""

from mha.cli.apart import Apart
from mha.cli.common import consoles, show_rows


def list_backends(asked: Apart) -> None:
    """Print the backends: versions, interpreter, devices and dtypes, or why one can't be used."""
    from mha_core import BackendError
    from mha_core.backend import names

    settings = asked.settings()
    rows = []
    with asked.kept():
        for name in names():
            try:
                backend, where = asked.one_backend(name, settings)
            except BackendError as error:
                rows.append((name, f"not usable: {error}", "", "", ""))
                continue
            versions = ", ".join(f"{package} {version}" for package, version in backend.versions().items())
            rows += [(name, versions, where, device, ", ".join(backend.dtypes(device))) for device in backend.devices()]
    show_rows(consoles()[0], ("backend", "versions", "interpreter", "device", "dtypes"), rows)
