"""What runs in an environment beside `mha check`: `python -m mha.matrix.inside BACKEND [DTYPE ...]`.

It prints lines of JSON: first the framework's own layers, then the outcome of each entry of the tables that a function
shows. Nothing is imported before the version of Python is known to be one that can read it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any


def main() -> None:
    """Do it, and end the process without taking the framework's threads down."""
    if tuple(sys.version_info) < (3, 11):
        sys.exit(f"this project needs Python 3.11 or newer. Got {sys.version_info[0]}.{sys.version_info[1]}.")
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a framework prints is no line of ours
    backend, *dtypes = sys.argv[1:]
    gc.disable()  # while a framework is imported, a sixth of the time goes into looking for cycles
    found = layers(backend, dtypes)
    print(json.dumps(found), file=lines, flush=True)  # at once: a probe may end the process
    for line in () if found["problem"] else probes(backend):
        print(json.dumps(line), file=lines, flush=True)
    os._exit(0)


def layers(backend: str, dtypes: Sequence[str]) -> dict[str, Any]:
    """What is installed, the framework's own layers that compute in one of the dtypes, and what this release lacks.

    `problem` says why the backend can't be used; "" if it can.
    """
    import platform
    from importlib import metadata

    from packaging.utils import canonicalize_name

    from conformance.subjects.load import load_subjects
    from mha_core.backend import load
    from mha_core.errors import SpecError, one_line

    try:
        versions = load(backend).versions()
    except Exception as error:  # whatever a framework raises while it is imported
        return {"problem": one_line(error)}
    found, lacking = [], []
    specs, lines = native_specs(backend)
    for spec in specs:
        try:
            load_subjects(spec, dtypes)
            found.append(spec)
        except SpecError as error:
            lacking.append(str(error))
    packages: dict[str, str] = {}
    for one in metadata.distributions():
        if one.metadata["Name"]:
            packages.setdefault(canonicalize_name(one.metadata["Name"]), one.version)  # the first is the one imported
    measured = {"python": platform.python_version(), "versions": versions, "packages": packages}
    return {"problem": "", "measured": {**measured, "lacking": [*lines, *lacking]}, "layers": found}


def native_specs(backend: str) -> tuple[list[str], list[str]]:
    """package.module:Class of every native subject in the package that the backend's table of deviations is in; and a
    line for each module there that can't be imported: the layers of the others are there all the same.
    """
    import importlib
    import inspect
    import pkgutil
    from importlib.metadata import entry_points

    from conformance.deviations.known import ENTRY_POINT_GROUP
    from mha_core.errors import one_line
    from mha_core.subject import NativeSubject

    found: list[str] = []
    lines: list[str] = []
    for point in entry_points(group=ENTRY_POINT_GROUP, name=backend):
        names = [point.module]
        for name in names:
            try:
                module = importlib.import_module(name)
            except Exception as error:  # whatever a release raises that lacks something
                lines.append(f"{name} can't be imported: {one_line(error)}")
                continue
            if name == point.module:
                names += [f"{name}.{member.name}" for member in pkgutil.iter_modules(module.__path__)]
            found += [
                f"{name}:{cls.__name__}"
                for cls in vars(module).values()
                if inspect.isclass(cls) and issubclass(cls, NativeSubject) and cls.__module__ == name
                if hasattr(cls, "name") and not inspect.isabstract(cls)
            ]
    return found, lines


def probes(backend: str) -> Iterator[dict[str, str]]:
    """The outcome of every entry of this backend that a function shows."""
    from dataclasses import replace

    from conformance.deviations.known import load
    from conformance.reprobe import probe_all

    for entry in load().entries:
        if entry.probe and backend in entry.frameworks:
            # Whether it happens is asked of releases, too, of which the table says nothing.
            (finding,) = probe_all([replace(entry, versions=(), only_where="")])
            yield {"id": entry.id, "outcome": finding.outcome, "seen": finding.seen}


if __name__ == "__main__":
    main()
