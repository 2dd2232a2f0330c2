"""Entry points: what installed packages declare, read from their metadata without importing anything.

A backend's further parts are declared as it is declared itself, each in a group of its own:

    mha.backends  name -> its `mha_core.backend.Backend`
    mha.layouts   name -> a `mha_core.layouts.Layout`
    mha.capture   package of a framework's layers -> the module with its hooks (`mha.recordings.capture.Hooks`)
    mha.subjects  layout -> the framework's own layer of that layout, as a subject
    mha.bench     backend -> its contestants (`mha.bench.contestants.contestant.Contestants`)

An attribute of the backend's class would not do: to read it, its module, and so the framework, has to be imported.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from mha_core.errors import BackendError


def declared(group: str, what: str) -> dict[str, EntryPoint]:
    """Name -> entry point of one group; nothing is imported until an entry point is loaded.

    Args:
        group: such as "mha.backends".
        what: what one entry is, for the message: "a backend".

    Raises:
        BackendError: two packages declare different things by one name.

    >>> sorted(declared("mha.backends", "a backend"))
    ['jax', 'mxnet', 'tf', 'torch']
    """
    found: dict[str, EntryPoint] = {}
    for entry_point in entry_points(group=group):
        known = found.setdefault(entry_point.name, entry_point)
        if known.value != entry_point.value:
            raise BackendError(
                f"two packages declare {what} {entry_point.name!r}: {known.value} and {entry_point.value}"
            )
    return found
