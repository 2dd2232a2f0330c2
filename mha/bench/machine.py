"""Describe the machine that measures, and limit a process to a number of threads."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")
"""Read by OpenMP, by OpenBLAS and MKL, and by XLA's thread pool, when they are loaded."""

BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
"""Linux's names for bfloat16 instructions, on x86 and on Arm."""


def cores() -> int:
    """The processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hold_to(threads: int) -> None:
    """Limit this process and its children to that many processors, if the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def environment(threads: int) -> dict[str, str]:
    """The environment of a worker: its frameworks read the number of threads while they are imported."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return {**os.environ, **quiet, **dict.fromkeys(THREAD_VARIABLES, str(threads))}


def has_bfloat16() -> bool:
    """Whether the processor has instructions for bfloat16."""
    return any(flag in _cpuinfo("flags", "Features").split() for flag in BFLOAT16_FLAGS)


def describe() -> dict[str, Any]:
    """The description of the machine for a results file."""
    return {
        "cpu": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "cores": cores(),
        "bfloat16": has_bfloat16(),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def _cpuinfo(*fields: str) -> str:
    """The first of these fields of the first processor; "" where there is no /proc/cpuinfo."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    found = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in found if name.strip() in fields), "")


def _memory() -> int | None:
    """Bytes of memory that the machine has."""
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    if not set(names) <= set(getattr(os, "sysconf_names", {})):
        return None
    return os.sysconf(names[0]) * os.sysconf(names[1])
