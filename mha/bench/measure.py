"""Measure time and memory. Contestants run in turn, so that other load on the machine slows all alike.

Memory is the peak during a call, less what was there before it. The kernel records the highest resident size of a
process and can reset it, so no peak is missed, as with sampling. Only Linux can do both; elsewhere it is not measured.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mha.bench.machine import field_of

Call = Callable[[], object]
"""One whole computation, which returns when its result is finished."""

FEWEST_ROUNDS, MOST_ROUNDS = 3, 100

SLOW, FAR = 1.0, 2.0
"""A contestant that takes SLOW seconds a call, and more than FAR times the fastest, gets FEWEST_SLOW samples."""

FEWEST_SLOW = 2


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median and quartiles over the samples.

    >>> Timing.of([4.0, 1.0, 2.0, 3.0, 5.0])
    Timing(median=3.0, lower=2.0, upper=4.0, samples=5)
    """

    median: float
    lower: float
    upper: float
    samples: int

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """The Timing of at least one sample."""
        quartiles = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
        return cls(statistics.median(seconds), quartiles[0], quartiles[2], len(seconds))


def timed(call: Call, clock: Callable[[], float] = time.perf_counter) -> tuple[float, object]:
    """Seconds that a call takes, and its result."""
    start = clock()
    result = call()
    return clock() - start, result


def round_robin(names: list[str], rounds: int) -> Iterator[list[str]]:
    """The order of the contestants in each round; each round begins with another, so that no pair always follows.

    >>> list(round_robin(["a", "b", "c"], 2))
    [['a', 'b', 'c'], ['b', 'c', 'a']]
    """
    for number in range(rounds):
        start = number % max(len(names), 1)
        yield names[start:] + names[:start]


def slow_ones(estimates: Mapping[str, float]) -> set[str]:
    """The contestants that are far slower than the fastest, and get few samples because each takes long.

    >>> slow_ones({"a": 0.9, "b": 1.7, "c": 60.0}), slow_ones({"a": 60.0, "b": 70.0}), slow_ones({"a": 0.1, "b": 0.9})
    ({'c'}, set(), set())
    """
    fastest = min(estimates.values(), default=0.0)
    return {name for name, estimate in estimates.items() if estimate >= SLOW and estimate > FAR * fastest}


def rounds_for(estimates: Mapping[str, float], seconds: float) -> int:
    """Rounds in which a contestant that is not slow takes `seconds` on average.

    >>> rounds_for({"a": 0.1, "b": 0.3, "slow": 60.0}, seconds=1.0), rounds_for({"a": 2.0}, seconds=1.0)
    (5, 3)
    """
    slow = slow_ones(estimates)
    quick = [estimate for name, estimate in estimates.items() if name not in slow]
    fitting = seconds * len(quick) / max(sum(quick), 1e-9)
    return max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(fitting)))


def measure(
    calls: Mapping[str, Call],
    samples: Mapping[str, list[float]],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[str], None] = lambda name: None,
) -> dict[str, Timing]:
    """Median and quartiles of each call's time.

    Args:
        calls: name -> a call that has run before.
        samples: name -> seconds of at least one earlier call, not the first. The last is the estimate of its time;
            the samples of slow contestants count as measured, the others do not.
        seconds: time for each contestant; FEWEST_ROUNDS are run however long they take, unless a contestant is slow.
        clock: returns a time in seconds.
        before: called with the name before each call, outside the measured time.
    """
    estimates = {name: samples[name][-1] for name in calls}
    slow = slow_ones(estimates)
    found: dict[str, list[float]] = {name: list(samples[name]) if name in slow else [] for name in calls}
    with _garbage_kept():
        for order in round_robin(list(calls), rounds_for(estimates, seconds)):
            for name in order:
                if name in slow and len(found[name]) >= FEWEST_SLOW:
                    continue
                before(name)
                found[name].append(timed(calls[name], clock)[0])
    return {name: Timing.of(taken) for name, taken in found.items()}


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """A context without garbage collection."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# Memory ---------------------------------------------------------------------------------------------------

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

RESET_PEAK = "5"
"""Written to clear_refs, it makes the kernel reset the peak to the present size; see proc_pid_clear_refs(5)."""


def extra_peak(call: Call) -> int | None:
    """Bytes of resident memory that one call adds at most, its result included; None where it can't be measured.

    Freed memory is given back to the system first, so that it counts when the call takes it again.
    """
    gc.collect()
    _give_back()
    try:
        CLEAR.write_text(RESET_PEAK)
    except OSError:
        return None
    before = field_of(STATUS, "VmRSS:", 1024)
    result = call()
    peak = field_of(STATUS, "VmHWM:", 1024)
    del result
    return None if before is None or peak is None else max(0, peak - before)


def _give_back() -> None:
    """Have the C library return freed memory, where it knows how to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
