"""Start a worker for each framework, one after the other, and gather what they report."""

from __future__ import annotations

import importlib.util
import json
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

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
        return run_pass(request, {}, advance)
    measured = run_pass(replace(request, measures=("time",)), {}, advance)
    if measured.problem is None:
        add_memory(measured, run_pass(replace(request, measures=("memory",)), special, advance))
    return measured


def run_pass(request: Request, environment: Mapping[str, str], advance: Callable[[dict[str, Any]], None]) -> Measured:
    """Measure all rows in one process; then, each in a process of its own, who had no room beside the others."""
    measured = run_worker(request, environment, advance)
    for number, row in enumerate(measured.rows):
        if len(row["contestants"]) == 1:
            continue
        for index, entry in enumerate(row["contestants"]):
            if is_too_large(entry) and machine.fits(entry["need"], machine.free_memory()):
                alone = replace(request, first=number, count=1, only=entry["name"])
                found = run_worker(alone, environment, lambda row: None)
                for again in found.rows:
                    row["contestants"][index] = {**again["contestants"][0], "alone": True}
    return measured


def is_too_large(entry: Mapping[str, Any]) -> bool:
    """Whether a contestant was left out because memory had no room for it."""
    measured = entry["time"] is not None or entry["extra_memory"] is not None
    return not measured and entry["need"] is not None and not machine.fits(entry["need"], entry["free"])


def passes(request: Request) -> int:
    """How many times each row of a request is measured."""
    return 2 if contestants_of(request.framework).memory_environment else 1


def add_memory(measured: Measured, other: Measured) -> None:
    """Add the memory that another process measured to the rows of `measured`, and why it has none of a contestant."""
    measured.problem = other.problem
    for row, again in zip(measured.rows, other.rows, strict=False):  # a process that ended early has fewer
        for entry, found in zip(row["contestants"], again["contestants"], strict=True):
            entry["extra_memory"] = found["extra_memory"]
            entry |= {name: entry[name] or found[name] for name in ("left_out", "failed", "alone")}


def run_worker(request: Request, environment: Mapping[str, str], advance: Callable[[dict[str, Any]], None]) -> Measured:
    """Measure the rows of a request in a process with these environment variables.

    If a contestant ends the process, it is left out of that row with the reason, and another process goes on there.
    What ends it elsewhere is a problem; the rows so far are kept.
    """
    measured = Measured(request.framework)
    done, lost = 0, dict[str, str]()
    while True:
        count = None if request.count is None else request.count - done
        rest = replace(request, first=request.first + done, count=count, lost=lost)
        end = _run_process(rest, environment, measured, advance)
        if end is None:
            return measured
        if len(measured.rows) > done:
            done, lost = len(measured.rows), {}
        if not end.during or end.during in lost:
            measured.problem = "\n".join([f"the measuring of {request.framework} {end.how}", *end.last_words])
            return measured
        lost = {**lost, end.during: end.how}


class _End(NamedTuple):
    """How a worker ended early: in words, during which contestant ("" for none), and the last lines of its stderr."""

    how: str
    during: str
    last_words: list[str]


def _run_process(
    request: Request, environment: Mapping[str, str], measured: Measured, advance: Callable[[dict[str, Any]], None]
) -> _End | None:
    """Run one process, whose report is added to `measured`; None if it ended as it should."""
    kills = machine.kills()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        place = Path(folder, "place")
        with subprocess.Popen(
            [sys.executable, "-m", "mha.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**machine.environment(request.threads), **environment},
        ) as process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(pickle.dumps(replace(request, place=str(place))))
                process.stdin.close()
                gather(measured, map(json.loads, process.stdout), advance)
                status = process.wait()
            except BaseException:
                process.kill()
                raise
        if status == 0:
            return None
        errors.seek(0)
        last = errors.read().strip().splitlines()[-WORDS_OF_AN_END:]
        during = place.read_text(encoding="utf-8") if place.exists() else ""
    return _End(_how(status, machine.kills() != kills), during, last)


def _how(status: int, memory_ran_out: bool) -> str:
    """How a process ended early.

    >>> _how(-9, memory_ran_out=True), _how(-11, memory_ran_out=False), _how(3, memory_ran_out=False)
    ('was killed: memory ran out (SIGKILL)', 'was killed (SIGSEGV)', 'ended its process with status 3')
    """
    if status >= 0:
        return f"ended its process with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"was killed: memory ran out ({name})" if name == "SIGKILL" and memory_ran_out else f"was killed ({name})"


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
