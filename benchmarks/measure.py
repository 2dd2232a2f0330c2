"""Time and memory of calls. Contestants run in turn, so that other load on the machine slows all alike.

Memory is the peak during a call, less what was there before it. The kernel records the highest resident size of a
process and can reset it, so no peak is missed, as with sampling. Only Linux can do both; elsewhere it is not measured.
"""

import ctypes
import gc
import resource
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

Call = Callable[[], Any]  # one whole computation, which returns when its result is finished

FEWEST_ROUNDS, MOST_ROUNDS = 9, 100

SLOW, FAR = 1.0, 2.0
"""A contestant that takes SLOW seconds a call, and FAR times the fastest, runs in the first round alone."""

MEMORY_CALLS = 3
"""Calls of which the middle one counts: in a first one threads and allocators take what they will keep, and what a
framework frees late is there already in the next."""

SHARE = 0.9  # of the free memory, that a framework may take

PROC = Path("/proc")


def in_turn(
    calls: Mapping[int, Call], estimates: Mapping[int, float], seconds: float, before: Callable[[int], None]
) -> dict[int, list[float]]:
    """Return the seconds of each contestant's call in each round; every round begins with another one.

    Each is given `seconds`, by the estimates of a call's time, and `before` is told who is called next.
    """
    fastest = min(estimates.values(), default=0.0)
    slow = {name for name, estimate in estimates.items() if estimate >= SLOW and estimate > FAR * fastest}
    quick = [estimate for name, estimate in estimates.items() if name not in slow]
    rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(seconds * len(quick) / max(sum(quick), 1e-9))))
    found: dict[int, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds if calls else 0):
            start = number % len(calls)
            for name in [*calls][start:] + [*calls][:start]:
                if number == 0 or name not in slow:
                    before(name)
                    found[name].append(timed(calls[name]))
    finally:
        gc.enable()
    return found


def timed(call: Call) -> float:
    """Return the seconds that a call takes, without freeing its result."""
    start, result, end = perf_counter(), call(), perf_counter()
    del result
    return end - start


def summary(samples: list[float]) -> dict[str, float]:
    """Return median, quartiles and number of samples; {} of none."""
    if not samples:
        return {}
    lower, _, upper = statistics.quantiles(samples, method="inclusive") if len(samples) > 1 else 3 * samples
    return {"median": statistics.median(samples), "lower": lower, "upper": upper, "samples": len(samples)}


def extra_peak(call: Call) -> int | None:
    """Return the bytes of resident memory at the peak of a call, its result included; None where unknown.

    It is the median of MEMORY_CALLS calls.
    """
    peaks = [_peak(call) for _ in range(MEMORY_CALLS)]
    return statistics.median_low([peak for peak in peaks if peak is not None]) if None not in peaks else None


def _peak(call: Call) -> int | None:
    """Freed memory is given back to the system first, so that it counts when the call takes it again."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)
    try:
        (PROC / "self" / "clear_refs").write_text("5")  # resets the peak to the present size
    except OSError:
        return None
    before = field_of("self/status", "VmRSS")
    result = call()
    peak = field_of("self/status", "VmHWM")
    del result
    return 1024 * max(0, int(peak.split()[0]) - int(before.split()[0]))


def limit_memory() -> None:
    """Make an allocation fail that takes this process beyond SHARE of the memory that is free now, on Linux.

    Where memory runs out all the same, the kernel ends this process before others.
    """
    free, own = field_of("meminfo", "MemAvailable"), field_of("self/status", "VmData")
    if free and own:
        limit = int(1024 * (int(own.split()[0]) + SHARE * int(free.split()[0])))
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        (PROC / "self" / "oom_score_adj").write_text("1000")


def field_of(file: str, name: str) -> str:
    """Return what stands after a name and a colon in a file of the kernel's; "" where there is none."""
    try:
        lines = (PROC / file).read_text().splitlines()
    except OSError:
        return ""
    found = (line.partition(":") for line in lines)
    return next((value.strip() for field, _, value in found if field.strip() == name), "")
