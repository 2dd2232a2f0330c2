"""What runs inside an environment: reads a task in JSON from stdin, and writes what it finds, one line of JSON each.

Results are as they were measured, judged with no table of deviations: `mha.matrix.judged` applies the tables when they
are shown, so that a corrected table needs no new run.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import IO, Any

from packaging.utils import canonicalize_name

PARTS = ("backend", "natives", "probes")
"""What is run in an environment, each in a process of its own: the suite on the backend; the suite on each native
layer of the framework; and the entries of the tables that a function shows instead of a case."""


def main() -> None:
    """Carry out the task, and end the process without taking the framework's threads down."""
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a framework prints is no event
    task = json.loads(sys.stdin.read())
    for event in run(task):
        _write(events, event)
    _write(events, {"event": "end"})
    os._exit(0)


def run(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of one task: its part, backend, cases, dtypes, time limit, and subjects to leave out."""
    if task["part"] == "backend":
        yield {"event": "versions", "python": platform.python_version(), "packages": installed_packages()}
        yield from _backend(task)
    elif task["part"] == "natives":
        yield from _natives(task)
    else:
        yield from _probes(task)


def installed_packages() -> dict[str, str]:
    """Package -> version of all that this interpreter finds."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(canonicalize_name(name), distribution.version)
    return dict(sorted(found.items()))


def _backend(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from conformance.subjects.backend import BackendSubject, paths_to_check
    from mha_core.backend import load
    from mha_core.errors import one_line

    try:
        backend = load(task["backend"])
        versions = backend.versions()
        dtypes = [dtype for dtype in task["dtypes"] if dtype in backend.dtypes("cpu")]
    except Exception as error:  # whatever a framework raises while it is imported
        yield {"event": "broken", "message": one_line(error)}
        return
    yield {"event": "framework", "versions": versions}
    subjects = [
        BackendSubject(backend, dtype, "cpu", path) for dtype in dtypes for path in paths_to_check(backend, None)
    ]
    for subject in subjects:
        yield from _results(subject, subjects, f"{subject.selector} --dtype {subject.dtype}", task)


def _natives(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from conformance.subjects.load import load_subjects
    from mha.matrix.natives import native_specs
    from mha_core.errors import SpecError

    specs, lines = native_specs(task["backend"])
    for line in lines:
        yield {"event": "lacks", "message": line}
    for spec in specs:
        if spec in task["without"]:
            continue
        yield {"event": "subject", "spec": spec}
        try:
            subjects, _ = load_subjects(spec, task["dtypes"], time_limit=task["time_limit"])
        except SpecError as error:
            yield {"event": "absent", "spec": spec, "message": str(error)}
            continue
        for subject in subjects:
            yield from _results(subject, subjects, spec, task)
        if "jax" in sys.modules:
            sys.modules["jax"].clear_caches()  # each layer compiles programs of its own, a gigabyte of them


def _results(subject: Any, beside: Sequence[Any], spec: str, task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from conformance.cases.table import select_asked
    from conformance.runner import asked_of, run_all

    cases = asked_of(subject, select_asked(tuple(task["cases"])), beside)
    for result in run_all(cases, [subject]):
        # The ratios of what is equal fill files, and say nothing here.
        found = {name: value for name, value in result.to_dict().items() if name not in ("ratios", "recorded", "rerun")}
        yield {"event": "result", "spec": spec, "result": found}


def _probes(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from dataclasses import replace

    from conformance.deviations.known import load
    from conformance.reprobe import probe_all

    for entry in load().entries:
        if entry.probe and task["backend"] in entry.frameworks:
            # Whether it happens is asked of releases, too, of which the table says nothing.
            (finding,) = probe_all([replace(entry, versions=(), only_where="")])
            yield {"event": "probe", "id": entry.id, "outcome": finding.outcome, "seen": finding.seen}


def _write(events: IO[str], event: dict[str, Any]) -> None:
    from mha_core.files.writing import jsonable

    events.write(json.dumps(jsonable(event)) + "\n")
    events.flush()


if __name__ == "__main__":
    main()
