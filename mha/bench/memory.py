"""Measure memory: the peak during a call, less the memory before it.

The kernel records the highest resident size of a process and can reset it, so no peak is missed, as with
sampling. Only Linux can do both; elsewhere memory is not measured.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

RESET_PEAK = "5"
"""Written to clear_refs, it makes the kernel reset the peak to the present size; see proc_pid_clear_refs(5)."""


def extra_peak(call: Callable[[], Any]) -> int | None:
    """Bytes of resident memory that one call adds at most, its result included; None where it can't be measured.

    Freed memory is given back to the system first, so that it counts when the call takes it again.
    """
    gc.collect()
    _give_back()
    try:
        CLEAR.write_text(RESET_PEAK)
        before = _resident("VmRSS")
    except OSError:
        return None
    result = call()
    peak = _resident("VmHWM")
    del result
    return max(0, peak - before)


def _resident(field: str) -> int:
    """A field of the process's status, in bytes."""
    for line in STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise OSError(f"{STATUS} has no {field}")


def _give_back() -> None:
    """Have the C library return freed memory, where it knows how to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
