"""Entry points: what installed packages declare, read from their metadata without importing anything.

A backend's further parts are declared as it is declared itself, each in a group of its own:

    mha.backends  name -> its `mha_core.backend.Backend`
    mha.layouts   name -> a `mha_core.layouts.Layout`
    mha.capture   package of a framework's layers -> the module with its hooks (`mha.recordings.capture.Hooks`)
    mha.subjects  layout -> the framework's own layer of that layout, as a subject

An attribute of the backend's class would not do: to read it, its module, and so the framework, has to be imported.
"""

import os
import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from mha_core.errors import BackendError


def declared(group: str, what: str) -> dict[str, EntryPoint]:
    """Return name -> entry point of a group such as "mha.backends". It imports nothing.

    `what` stands for one entry point of the group in the error message, such as "a backend".

    Raises:
        BackendError: two packages declare different things by one name.

    >>> sorted(declared("mha.backends", "a backend"))
    ['jax', 'mxnet', 'tf', 'torch']
    """
    found: dict[str, EntryPoint] = {}
    for entry_point in _installed(group, _folders()):
        known = found.setdefault(entry_point.name, entry_point)
        if known.value != entry_point.value:
            raise BackendError(
                f"two packages declare {what} {entry_point.name!r}: {known.value} and {entry_point.value}"
            )
    return found


@lru_cache(maxsize=16)  # a file of each installed package is read
def _installed(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """The entry points of a group that packages in these folders have."""
    return tuple(entry_points(group=group))


def _folders() -> tuple[tuple[str, int], ...]:
    """Where Python looks for packages, and when each folder changed last: as it does where one is installed."""
    found = []
    for path in sys.path:
        try:
            found.append((path, os.stat(path or os.curdir).st_mtime_ns))
        except OSError:
            found.append((path, 0))
    return tuple(found)
