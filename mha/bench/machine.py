"""The machine that measures: what it is, a process' share of its processors, and room in memory.

A process that asks for more memory than there is gets killed, perhaps after it has slowed everything else on the
machine. Only Linux says what is free; elsewhere every contestant is called.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from conformance.workers.local import cores

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")
"""Read by OpenMP, by OpenBLAS and MKL, and by XLA's thread pool, when they are loaded."""

BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
"""Linux's names for bfloat16 instructions, on x86 and on Arm."""


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
    found = (line.partition(":") for line in _lines(Path("/proc/cpuinfo")))
    return next((value.strip() for name, _, value in found if name.strip() in fields), "")


def _lines(path: Path) -> list[str]:
    """The lines of a file of the kernel's; none where there is no such file."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _memory() -> int | None:
    """Bytes of memory that the machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # another system
        return None


# Room in memory -------------------------------------------------------------------------------------------

SHARE = 0.9
"""The share of the free memory that a contestant may need; the rest is left to whatever else runs."""

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")

MOST_ADJUSTMENT = 1000
"""Written to oom_score_adj, it makes a process the first to go when memory runs out; see proc_pid_oom_score_adj(5)."""


def free_memory() -> int | None:
    """Bytes that this process could still get: of the machine, and of each control group that limits it.

    None where the system does not say. Memory that holds files which can be read again counts as free.
    """
    of_machine = field_of(PROC / "meminfo", "MemAvailable:", 1024)
    known = [free for free in (of_machine, *_of_groups()) if free is not None]
    return max(0, min(known)) if known else None


def fits(need: int, free: int | None) -> bool:
    """Whether a contestant that needs so many bytes can be called where so many are free.

    >>> fits(8_000, 10_000), fits(9_500, 10_000), fits(10**15, None)
    (True, False, True)
    """
    return free is None or need <= SHARE * free


def too_large(need: int, free: int | None) -> str:
    """The reason for leaving out a contestant that does not fit.

    >>> too_large(13_200_000_000, 9_060_000_000)
    'too large: it needs about 13.2 GB, and 9.1 GB of memory are free'
    """
    return f"too large: it needs about {need / 1e9:.1f} GB, and {(free or 0) / 1e9:.1f} GB of memory are free"


def go_first() -> None:
    """Make this process the first that the kernel kills if memory runs out, before the user's other programs."""
    try:
        (PROC / "self" / "oom_score_adj").write_text(str(MOST_ADJUSTMENT))
    except OSError:
        return  # another system, or one that does not let it


def kills() -> int | None:
    """How many processes the kernel has killed because memory ran out; None where it does not count."""
    return field_of(PROC / "vmstat", "oom_kill", 1)


def _of_groups() -> Iterator[int | None]:
    """What is free in each control group that this process is in, of version 1 or 2."""
    for line in _lines(PROC / "self" / "cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield from map(_of_group, _folders(CGROUPS, path))
        elif "memory" in controllers.split(","):
            yield from map(_of_group, _folders(CGROUPS / "memory", path))


def _folders(root: Path, path: str) -> Iterator[Path]:
    """A group's folder and those around it, as far as they can be seen: in a container the path may lead elsewhere."""
    inner = PurePosixPath(path.lstrip("/"))
    for part in (inner, *inner.parents):
        if ".." not in part.parts and (root / part).is_dir():
            yield root / part


def _of_group(folder: Path) -> int | None:
    for limit_name, usage_name, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is not None and usage is not None:
            return limit - usage + (field_of(folder / "memory.stat", cache, 1) or 0)
    return None


def _number(path: Path) -> int | None:
    """The number that a file holds; None for "max" or without such a file."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def field_of(path: Path, name: str, unit: int) -> int | None:
    """The number after a name at the beginning of a line, times `unit`; None if there is none."""
    found = (line.split() for line in _lines(path))
    return next((int(words[1]) * unit for words in found if len(words) > 1 and words[0] == name), None)
