"""Start a worker for each framework, one after the other, and gather what they report."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mha.bench import machine
from mha.bench.contestants.contestant import contestants_of, names
from mha.bench.worker import Request
from mha_core.backend import install_line
from mha_core.errors import BackendError, BackendNotInstalled

WORDS_OF_AN_END = 3
"""Last lines of a worker's stderr that are shown if it ends in the middle."""


@dataclass
class Measured:
    """The report of one worker.

    Args:
        framework: the backend's name.
        ready: versions, threads and devices; None if the worker ended before it knew them.
        rows: its rows, in the form of a results file.
        problem: why rows are missing; None if all are there.
        absent: whether the framework can't be imported, so that there are no rows.
    """

    framework: str
    ready: dict[str, Any] | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None
    absent: bool = False


def installed(requested: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The frameworks to measure, without importing any; and a line for each that is not installed.

    Raises:
        BackendError: one that was asked for is not known, or not installed; or none is.
    """
    found, absent = [], []
    for name in dict.fromkeys(requested) or names():
        packages = contestants_of(name).packages
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if not missing:
            found.append(name)
            continue
        line = f"backend {name!r} needs the package {missing[0]!r}, which is not installed. {install_line(name)}"
        if requested:
            raise BackendNotInstalled(line)
        absent.append(f"left out: {line}")
    if not found:
        raise BackendError("\n".join(["no backend is installed:", *absent]))
    return found, absent


def run_framework(request: Request, advance: Callable[[dict[str, Any]], None] = lambda row: None) -> Measured:
    """Measure one framework: in one process, or time and memory in one each. `advance` is called with each row."""
    special = contestants_of(request.framework).memory_environment
    if not special:
        return run_worker(request, {}, advance)
    measured = run_worker(replace(request, measures=("time",)), {}, advance)
    if measured.problem is None:
        add_memory(measured, run_worker(replace(request, measures=("memory",)), special, advance))
    return measured


def passes(request: Request) -> int:
    """How many times each row of a request is measured."""
    return 2 if contestants_of(request.framework).memory_environment else 1


def add_memory(measured: Measured, other: Measured) -> None:
    """Add the memory that another process measured to the rows of `measured`."""
    measured.problem = other.problem
    for row, again in zip(measured.rows, other.rows, strict=False):  # a process that ended early has fewer
        for entry, found in zip(row["contestants"], again["contestants"], strict=True):
            entry["extra_memory"] = found["extra_memory"]


def run_worker(request: Request, environment: Mapping[str, str], advance: Callable[[dict[str, Any]], None]) -> Measured:
    """Run one process with these environment variables; if it ends early, the rows so far are kept."""
    measured = Measured(request.framework)
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            [sys.executable, "-m", "mha.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**machine.environment(request.threads), **environment},
        ) as process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(request.to_json())
                process.stdin.close()
                gather(measured, map(json.loads, process.stdout), advance)
                status = process.wait()
            except BaseException:
                process.kill()
                raise
        if status != 0:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-WORDS_OF_AN_END:]
            measured.problem = "\n".join([f"the measuring of {request.framework} ended with status {status}", *last])
    return measured


def gather(measured: Measured, events: Iterable[dict[str, Any]], advance: Callable[[dict[str, Any]], None]) -> None:
    """Add the events of a worker to `measured`."""
    for event in events:
        kind = event.pop("event")
        if kind == "ready":
            measured.ready = event
        elif kind == "absent":
            measured.problem, measured.absent = event["reason"], True
        else:
            measured.rows.append(event["row"])
            advance(event["row"])
