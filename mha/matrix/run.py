"""Runs set after set: makes the environment, measures, keeps what was measured; a set that fails costs only itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mha.matrix import record as records
from mha.matrix.environments import source
from mha.matrix.environments.cache import Cache, key_of, remove
from mha.matrix.environments.make import NoEnvironment, environment, environment_key
from mha.matrix.measure import Broken, measure
from mha.matrix.record import Record
from mha.matrix.report import Row
from mha.matrix.request import ReleaseSet, Request


@dataclass(frozen=True)
class Options:
    """How sets are run.

    Attributes:
        tool: uv or pip.
        again: whether finished sets are measured again.
        remove: whether an environment is removed after its set.
        silence: the seconds in which a process must say something.
    """

    tool: str
    again: bool = False
    remove: bool = False
    silence: float = 300.0


def run_set(
    one: ReleaseSet,
    request: Request,
    options: Options,
    cache: Cache,
    copy: Path,
    progress: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """Measure a set, or read what was measured before: yields a row for each of its backends.

    Args:
        one: the set.
        request: the cases and dtypes.
        options: how.
        cache: where environments and results are kept.
        copy: the folder of the copy of this project that `source.copied` made.
        progress: called with what is being done.
    """
    base = source.base_requirements()
    key = environment_key(one, base, options.tool)
    missing = []
    for backend in one.backends:
        path = _result_path(cache, key, backend, request, copy)
        kept = None if options.again else records.read(path)
        if kept is None:
            missing.append((backend, path))
        else:
            kept.name = one.name
            yield Row(one.name, backend, one.note, kept)
    if not missing:
        return
    progress("making the environment")
    try:
        with _removed(cache.environments / key if options.remove else None):
            folder = environment(one, base, options.tool, cache)
            for backend, path in missing:
                yield _measured(one, backend, request, options, folder, copy, path, progress)
    except NoEnvironment as error:
        for backend, _ in missing:
            yield Row(one.name, backend, one.note, problem=str(error))


def _measured(
    one: ReleaseSet,
    backend: str,
    request: Request,
    options: Options,
    folder: Path,
    copy: Path,
    path: Path,
    progress: Callable[[str], None],
) -> Row:
    found = Record(one.name, backend)
    try:
        measure(found, request, folder, copy, options.silence, progress)
    except Broken as error:
        return Row(one.name, backend, one.note, problem=str(error))
    found.write(path)
    return Row(one.name, backend, one.note, found)


def _result_path(cache: Cache, key: str, backend: str, request: Request, copy: Path) -> Path:
    """The file of a finished set: its name changes with the environment, the request, and our own code."""
    state = source.fingerprint(copy, backend)
    what = key_of(key, backend, list(request.cases), list(request.dtypes), state, sys.platform)
    return cache.results / f"{what}.json"


@contextmanager
def _removed(folder: Path | None) -> Iterator[None]:
    try:
        yield
    finally:
        if folder is not None:
            remove(folder)
