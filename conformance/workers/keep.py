"""The worker processes that this process has started and that wait for work, by what they are for."""

from __future__ import annotations

import threading
from collections import defaultdict

from conformance.workers.interpreters import Home, Settings
from conformance.workers.process import WorkerProcess

_Key = tuple[Home, str | None]

_idle: dict[_Key, list[WorkerProcess]] = defaultdict(list)
_lock = threading.Lock()


def take(home: Home, settings: Settings) -> WorkerProcess:
    """A process for `home`: one that waits for work, or a new one.

    Raises:
        CannotStart: as `WorkerProcess`.
    """
    interpreter = settings.interpreter(home)
    with _lock:
        waiting = _idle[home, interpreter]
        while waiting:
            process = waiting.pop()
            if process.is_alive:
                return process
            process.end()  # it died while it waited, which costs nobody anything
    return WorkerProcess(home, interpreter)


def give_back(process: WorkerProcess) -> None:
    """Keep a process for later work."""
    with _lock:
        _idle[process.home, process.interpreter].append(process)


def end_idle(home: Home | None = None) -> None:
    """End those that wait for work, of one home or all."""
    with _lock:
        found = [key for key in _idle if home is None or key[0] == home]
        ended = [process for key in found for process in _idle.pop(key)]
    for process in ended:
        process.end()
