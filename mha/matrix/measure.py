"""Runs the suite in an environment: the backend, the framework's own layers, and the probes of the tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from mha.matrix.environments.make import interpreter, variables
from mha.matrix.environments.processes import ProgramFailed, lines
from mha.matrix.record import Record
from mha.matrix.request import Request
from mha.matrix.worker import PARTS

CASE_LIMIT = 60.0
"""Seconds that a framework's own layer may take for one case."""


class Broken(Exception):
    """The backend can't be used in this environment; the message is one line."""


def measure(
    record: Record, request: Request, environment: Path, source: Path, silence: float, progress: Callable[[str], None]
) -> None:
    """Run every part of the suite on one backend, and write what comes into `record`.

    Args:
        record: the record, with the names of set and backend.
        request: its cases and dtypes.
        environment: the folder of the environment.
        source: the folder that holds this project's packages.
        silence: the seconds in which a process must say something; one that does not is ended.
        progress: called with a line after each event.

    Raises:
        Broken: the backend can't be imported, or its process ends before it says what it runs on.
    """
    for part in PARTS:
        without: list[str] = []
        while True:
            subject = ""
            task = {
                "part": part,
                "backend": record.backend,
                "cases": list(request.cases),
                "dtypes": list(request.dtypes),
                "time_limit": CASE_LIMIT,
                "without": without,
            }
            command = [str(interpreter(environment)), "-m", "mha.matrix.worker"]
            path = variables({"PYTHONPATH": str(source), "PYTHONSAFEPATH": "1"})
            try:
                # Closed at once: an interrupt may come between two lines, and nothing may be left of the process.
                with closing(lines(command, path, silence, environment, json.dumps(task))) as said:
                    for event in map(json.loads, said):
                        if event["event"] == "subject":
                            subject = event["spec"]
                            without.append(subject)
                        add(record, event)
                        progress(_text(part, event))
            except ProgramFailed as failure:
                if not record.versions:
                    raise Broken(f"{record.backend} can't be used: {failure}") from failure
                record.problems.append(f"{subject or part}: {failure}")
                if subject:  # the layers after the one that ended the process get one of their own
                    continue
            break


def add(record: Record, event: dict[str, Any]) -> None:
    """Add one event of a worker to a record. Raises Broken if it says that the backend can't be used."""
    kind = event["event"]
    if kind == "versions":
        record.python, record.packages = event["python"], event["packages"]
    elif kind == "framework":
        record.versions = event["versions"]
    elif kind == "result":
        record.results.append({"spec": event["spec"], "result": event["result"]})
    elif kind == "probe":
        record.probes.append({name: event[name] for name in ("id", "outcome", "seen")})
    elif kind in ("lacks", "absent"):
        record.lacking.append(event["message"])
    elif kind == "broken":
        raise Broken(f"{record.backend} can't be used: {event['message']}")


def _text(part: str, event: dict[str, Any]) -> str:
    if event["event"] == "result":
        result = event["result"]
        return f"{result['subject']} {result['dtype']} {result['case']}"
    return str(event.get("spec") or event.get("id") or part)
