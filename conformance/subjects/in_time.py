"""A time limit: work runs in another thread, which is abandoned if it does not finish in time."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any


class TookTooLong(RuntimeError):
    """The work did not finish within the limit, which the message names."""


Answer = tuple[Any, BaseException | None]
"""(the result of a job, None), or (None, the exception that it raised)."""

_idle: list[_Worker] = []
"""Threads that wait for work. One is enough unless subjects ask subjects."""

_abandoned: list[threading.Thread] = []
"""Threads whose work did not finish in time."""


class _Worker:
    """A daemon thread that does one job after another.

    It is kept from case to case: frameworks hold state and thread pools per thread.
    """

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.answers: SimpleQueue[Answer] = SimpleQueue()
        self.thread = threading.Thread(target=self._loop, name="mha-subject", daemon=True)
        self.thread.start()

    def _loop(self) -> None:
        while (job := self.jobs.get()) is not None:
            try:
                self.answers.put((job(), None))
            except BaseException as error:  # it belongs to whoever waits for the answer
                self.answers.put((None, error))
            del job


def in_time(work: Callable[[], Any], seconds: float) -> Any:
    """Run `work()` in another thread, and return or raise as it does; TookTooLong after `seconds`.

    A thread can't be stopped: it is abandoned then, and ends with the process at the latest.
    """
    worker = _idle.pop() if _idle else _Worker()
    worker.jobs.put(partial(contextvars.copy_context().run, work))
    try:
        answer, error = _wait(worker.answers, seconds)
    except Empty:
        worker.jobs.put(None)
        _abandoned.append(worker.thread)
        raise TookTooLong(f"no answer within {seconds:g} s") from None
    except BaseException:  # an interrupt, while it was busy
        worker.jobs.put(None)
        raise
    _idle.append(worker)
    if error is not None:
        raise error
    return answer


def idle_threads() -> list[threading.Thread]:
    """The threads that wait for work; none of them is in a subject's code."""
    return [worker.thread for worker in _idle]


def abandoned_threads() -> list[threading.Thread]:
    """The threads that were abandoned and are still at work."""
    _abandoned[:] = [thread for thread in _abandoned if thread.is_alive()]
    return list(_abandoned)


def _wait(answers: SimpleQueue[Answer], seconds: float) -> Answer:
    """The next answer; Empty if there is none in time. It waits in short steps, so that an interrupt gets through."""
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            return answers.get(timeout=max(0.0, min(left, 0.1)))
        except Empty:
            if left <= 0.1:
                raise
