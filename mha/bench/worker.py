"""Measures one framework in a process of its own: `python -m mha.bench.worker`, started by `mha.bench.run`.

It reads one pickled Request on stdin, and writes one event a line on stdout, as JSON: "ready" (or "absent",
with the reason), then "row" for each row as soon as it is there.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mha.bench import machine
from mha.bench.contestants.contestant import CannotRun, Contestant, Framework, Prepared, Task, load
from mha.bench.measure import Timing, extra_peak, measure, timed
from mha.bench.settings import DIRECTIONS, Direction, Setting
from mha.bench.workload import BOUNDS, Answer, difference, flops, make_workload, reference_answer
from mha_core.errors import BackendError, SpecError, one_line

PRODUCT_SIZES, PRODUCT_CALLS = (1024, 2048), 5
"""Sizes and numbers of the matrix products, the fastest of which gives the peak."""

WARM = 1.1
"""If the first call takes at most WARM times as long as the second, it is used as a sample of slow contestants."""


@dataclass(frozen=True)
class Request:
    """The task of a worker.

    Args:
        framework: one of `mha.bench.contestants.contestant.names()`.
        settings, directions, dtypes, devices: every combination is measured. None as dtypes: those of each setting;
            None as devices: all devices.
        seconds: time for each contestant of a row.
        threads: how many threads the framework may use.
        measures: "time", "memory", or both.
        first, count: the rows to measure, numbered in the order of `rows_of`; a count of None is all the rest.
        only: the name of the one contestant to measure; None for all.
        lost: contestant -> the reason for which it is not called in the first row: it ended an earlier process there.
        place: a file that always says what is being called, for whoever finds this process dead; "" for none.
    """

    framework: str
    settings: tuple[Setting, ...]
    directions: tuple[Direction, ...] = DIRECTIONS
    dtypes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    seconds: float = 0.4
    threads: int = 1
    measures: tuple[str, ...] = ("time", "memory")
    first: int = 0
    count: int | None = None
    only: str | None = None
    lost: dict[str, str] = field(default_factory=dict)
    place: str = ""


class Place:
    """A file that holds the name of the contestant that is called just now, if any; "" for no file."""

    def __init__(self, path: str = "") -> None:
        self._path = path
        self._name = ""

    def enter(self, name: str) -> None:
        """Say that this contestant is called from now on; "" for none."""
        if self._path and name != self._name:
            Path(self._path).write_text(name, encoding="utf-8")
        self._name = name


@dataclass
class Measurement:
    """The measurements of one contestant in one row.

    need, free: bytes of memory that it takes at most, roughly, and that were free before it; None where that is not
        the processor's memory, or not known.
    """

    contestant: Contestant
    prepared: Prepared | None = None
    left_out: str | None = None
    failed: bool = False
    need: int | None = None
    free: int | None = None
    difference: float | None = None
    extra_memory: int | None = None
    samples: list[float] = field(default_factory=list)
    timing: Timing | None = None

    def to_dict(self) -> dict[str, Any]:
        """The form of a results file: a dict with times in seconds and memory in bytes."""
        return {
            "name": self.contestant.name,
            "kind": self.contestant.kind,
            "left_out": self.left_out,
            "failed": self.failed,
            "need": self.need,
            "free": self.free,
            "alone": False,
            "difference": self.difference,
            "time": None if self.timing is None else asdict(self.timing),
            "extra_memory": self.extra_memory,
        }


def main() -> None:
    """Read the request, measure, report."""
    # Frameworks may print: what this process says goes through a copy of stdout, what they say to stderr.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def report(kind: str, **content: Any) -> None:
        print(json.dumps({"event": kind, **content}), file=events, flush=True)

    request: Request = pickle.loads(sys.stdin.buffer.read())
    machine.go_first()
    machine.hold_to(request.threads)
    try:
        framework = load(request.framework)
    except BackendError as error:
        report("absent", reason=str(error))
        return
    gc.freeze()  # its modules stay: garbage is collected before all that is measured, and not among their objects
    threads = framework.set_threads(request.threads)
    report("ready", versions=framework.versions(), threads=threads, devices=framework.devices())
    for row in measure_framework(request, framework, Place(request.place)):
        report("row", row=row)


def measure_framework(request: Request, framework: Framework, place: Place | None = None) -> Iterator[dict[str, Any]]:
    """Measure each row of a request; yields rows in the form of a results file."""
    last = None if request.count is None else request.first + request.count
    contestants = [each for each in framework.CONTESTANTS if request.only in (None, each.name)]
    peaks: dict[tuple[str, str], float] = {}
    lost = request.lost
    for device, setting, dtype, direction in rows_of(request, framework)[request.first : last]:
        if (device, dtype) not in peaks:
            peaks[device, dtype] = product_peak(framework, dtype, device)
        task = Task(make_workload(setting, dtype), direction, dtype, device)
        entries = measure_row(tuple(contestants), task, request.seconds, request.measures, place=place, lost=lost)
        lost = {}
        yield {
            "framework": request.framework,
            "device": device,
            "setting": asdict(setting),
            "dtype": dtype,
            "direction": direction,
            "flops": flops(task.workload, direction),
            "peak": peaks[device, dtype],
            "contestants": [entry.to_dict() for entry in entries],
        }


def rows_of(request: Request, framework: Framework) -> list[tuple[str, Setting, str, Direction]]:
    """Device, setting, dtype and direction of each row of a request, in order."""
    known = framework.devices()
    return [
        (device, setting, dtype, direction)
        for device in (known if request.devices is None else request.devices)
        if device in known
        for setting in request.settings
        for dtype in _dtypes(request, setting, framework, device)
        for direction in request.directions
    ]


def _dtypes(request: Request, setting: Setting, framework: Framework, device: str) -> list[str]:
    """The dtypes that were asked for, or those of the setting: bfloat16 then only where there is hardware for it."""
    known = framework.dtypes(device)
    if request.dtypes is not None:
        return [dtype for dtype in request.dtypes if dtype in known]
    hardware = device != "cpu" or machine.has_bfloat16()
    return [dtype for dtype in setting.dtypes if dtype in known and (dtype != "bfloat16" or hardware)]


def measure_row(
    contestants: tuple[Contestant, ...],
    task: Task,
    seconds: float,
    measures: tuple[str, ...] = ("time", "memory"),
    *,
    place: Place | None = None,
    lost: Mapping[str, str] = MappingProxyType({}),
) -> list[Measurement]:
    """Measure all contestants in one setting: first their answers, then memory, then time.

    Those that are `lost`, with the reason, and those that memory has no room for are not called.
    """
    place = place or Place()
    wanted = reference_answer(task.workload, task.direction)
    entries = [Measurement(contestant) for contestant in contestants]
    for entry in entries:
        name = entry.contestant.name
        if name in lost:
            entry.left_out, entry.failed = lost[name], True
        elif _has_room(entry, task):
            place.enter(name)
            _try_out(entry, task, wanted, memory="memory" in measures)
    if "time" in measures:
        there = {entry.contestant.name: entry for entry in entries if entry.prepared is not None}
        calls = {name: entry.prepared.call for name, entry in there.items() if entry.prepared is not None}
        samples = {name: entry.samples for name, entry in there.items()}
        for name, timing in measure(calls, samples, seconds, before=place.enter).items():
            there[name].timing = timing
    place.enter("")
    return entries


def _has_room(entry: Measurement, task: Task) -> bool:
    """Whether the memory that is free now has room for a contestant; if not, that is why it is left out."""
    if task.device != "cpu":
        return True  # a device says so itself when its memory runs out, and ends no process
    entry.need, entry.free = entry.contestant.need(task), machine.free_memory()
    if not machine.fits(entry.need, entry.free):
        entry.left_out = machine.too_large(entry.need, entry.free)
    return entry.left_out is None


def _try_out(entry: Measurement, task: Task, wanted: Answer, memory: bool) -> None:
    """Make a contestant and its first calls: compare its answer, measure its memory, estimate its time."""
    try:
        try:
            prepared = entry.contestant.make(task)
        except (CannotRun, SpecError) as error:
            entry.left_out = str(error)
            return
        _first_calls(entry, prepared, task, wanted, memory)
    except Exception as error:  # a framework may raise anything; the others still run
        traceback.print_exception(error, file=sys.stderr)
        entry.left_out, entry.failed = f"failed: {one_line(error)}", True
        return
    if not entry.failed:
        entry.prepared = prepared


def _first_calls(entry: Measurement, prepared: Prepared, task: Task, wanted: Answer, memory: bool) -> None:
    first, result = timed(prepared.call)
    entry.difference, bound = difference(task.workload, prepared.read(result), wanted), BOUNDS[task.dtype]
    del result
    if not entry.difference <= bound:
        entry.left_out = f"refused: it is {entry.difference:.2g} from the reference, more than {bound:g}"
        entry.failed = True
        return
    seconds: list[float] = []

    def call() -> object:
        taken, result = timed(prepared.call)
        seconds.append(taken)
        return result

    if memory:
        entry.extra_memory = extra_peak(call) if prepared.extra_memory is None else prepared.extra_memory()
    if not seconds:
        call()
    # What compiles first, or is still cold, is no sample.
    entry.samples = [*([first] if first <= WARM * seconds[0] else []), *seconds]


def product_peak(framework: Framework, dtype: str, device: str) -> float:
    """The most operations per second that the framework's matrix products reach."""
    best = 0.0
    for size in PRODUCT_SIZES:
        call = framework.product(size, dtype, device)
        call()
        deadline = time.perf_counter() + 1.0
        for _ in range(PRODUCT_CALLS):
            best = max(best, 2 * size**3 / timed(call)[0])
            if time.perf_counter() > deadline:
                break
    return best


if __name__ == "__main__":
    main()
