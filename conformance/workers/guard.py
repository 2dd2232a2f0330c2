"""The process around a worker: when the worker ends, or whoever started it, it ends every process that is left.

On Linux alone: a process that leaves its group or its parent (setsid, a double fork) becomes a child of the guard
there. Elsewhere a worker is ended with its process group, and what has left the group stays.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Numbers of prctl, from linux/prctl.h."""

END_SECONDS = 3.0
"""Time to end processes that start others meanwhile."""


def stand_guard() -> None:
    """Fork on Linux, and return in the child. When the child ends, the parent kills all that the child started.

    Standard input must be a pipe from the process that started the parent. When that process ends or closes the pipe,
    the parent kills the child. Call this function before there are threads.
    """
    if sys.platform != "linux":
        return
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guard = os.getpid()
    worker = os.fork()
    if worker:
        _guard(worker)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != guard:  # it ended before it could be watched
        os._exit(1)
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _guard(worker: int) -> NoReturn:
    """Wait for the end of the worker, end what it left, and end as it did."""
    os.closerange(3, 1 << 20)  # so that the end of its connection can be seen
    threading.Thread(target=_end_with_starter, args=(worker,), daemon=True).start()
    status = None
    while status is None:
        ended, found = os.wait()
        status = found if ended == worker else None
    end_descendants(os.getpid())
    if os.WIFSIGNALED(status):
        import resource  # Windows has none, and no process comes here there

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker's is enough
        with suppress(OSError):  # SIGKILL always does what it does
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _end_with_starter(worker: int) -> None:
    """End the worker when the pipe at standard input is closed: whoever started it has ended, or wants that."""
    with suppress(OSError):
        while os.read(0, 1):
            pass
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)


def end_descendants(process: int) -> None:
    """End every process that `process` started, and those that they started; on Linux alone."""
    until = time.monotonic() + END_SECONDS
    while (found := descendants(process)) and time.monotonic() < until:
        for number in found:
            with suppress(ProcessLookupError, PermissionError):  # it has ended; or it is another user's, by sudo
                os.kill(number, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)


LISTS = "/proc/thread-self/children"
"""Whether the system lists, for each thread, the processes that it started: most do. One list takes a fiftieth of the
time that all processes take, and is asked for after every call of a learner's file."""


def descendants(process: int) -> list[int]:
    """Return the running processes that `process` started, and those that these started; on Linux alone."""
    found, new = [], [process]
    while new:
        new = [child for parent in new for child in _children(parent)]
        found += new
    return found


def _children(parent: int) -> list[int]:
    """The processes whose parent this is, but for ended ones."""
    if os.path.exists(LISTS):
        tasks = f"/proc/{parent}/task"
        with suppress(OSError):  # it has ended
            listed = b" ".join(_content(f"{tasks}/{thread}/children") for thread in os.listdir(tasks)).split()
            return [number for number in map(int, listed) if _parent(number) == parent]
        return []
    return [number for number in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(number) == parent]


def _parent(process: int) -> int | None:
    """The parent of a process; None for one that has ended."""
    state, parent, *_ = _content(f"/proc/{process}/stat").rpartition(b")")[2].split(None, 2) or (b"X", b"0")
    return None if state in b"ZX" else int(parent)


def _content(path: str) -> bytes:
    """What stands in a file of the system; nothing if who it was about has ended."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, 1 << 16)
        finally:
            os.close(file)
    return b""
