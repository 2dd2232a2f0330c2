"""Memory: how much more a call has at its peak than there was before it.

The kernel keeps the highest resident size of a process, and forgets it when told to: no sampling, nothing
missed. Only Linux has both; elsewhere memory is not measured.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

RESET_PEAK = "5"
"""What makes the kernel set the peak to the present size; see proc_pid_clear_refs(5)."""


def extra_peak(call: Callable[[], Any]) -> int | None:
    """Bytes of resident memory that one call adds at most, its result included; None where nothing can tell.

    What was freed before is given back to the system first, so that taking it again counts.
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
