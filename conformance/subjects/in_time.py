"""A time limit: work runs in another thread, which is abandoned if it does not finish in time.

At the end stands what is restored that somebody's code may change for the whole process: streams, the recursion limit;
where it is alone, NumPy.
"""

from __future__ import annotations

import builtins
import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TextIO


class TookTooLong(RuntimeError):
    """An error: the work did not finish within the limit, which the message names.

    Attributes:
        threads: the threads that are still at work.
    """

    threads: tuple[threading.Thread, ...] = ()


Answer = tuple[Any, BaseException | None]
"""(the result of a job, None), or (None, the exception that it raised)."""

IS_ALONE = sys.platform == "emscripten"
"""True where Python has no threads and processes, as in a browser, whose page keeps the time."""

_limit = 0.0
"""Seconds that what runs `alone` may take; 0 while nothing does."""

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
    """Run `work()` in another thread; return its result or raise its error. Raises TookTooLong after `seconds`.

    The thread is then abandoned, because it can't be stopped; it ends with the process at the latest.
    """
    return all_in_time([work], seconds)[0]


def all_in_time(works: Sequence[Callable[[], Any]], seconds: float) -> list[Any]:
    """Run all `works` at the same time, each as `in_time` does; return their results or raise the first error."""
    if IS_ALONE:
        return [alone(work, seconds) for work in works]
    workers = [_idle.pop() if _idle else _Worker() for _ in works]
    for worker, work in zip(workers, works, strict=True):
        worker.jobs.put(partial(contextvars.copy_context().run, work))
    busy, found = list(workers), []
    deadline = time.monotonic() + seconds
    try:
        while busy:
            found.append(_wait(busy[0].answers, deadline))
            busy.pop(0)
    except BaseException as error:  # out of time; or an interrupt, while they were busy
        for worker in busy:
            worker.jobs.put(None)
        if not isinstance(error, Empty):
            raise
        _abandoned.extend(worker.thread for worker in busy)
        late = TookTooLong(f"no answer within {seconds:g} s")
        late.threads = tuple(worker.thread for worker in busy)
        raise late from None
    finally:
        # The first comes last, so that it is the first the next time: one thread asks from case to case.
        _idle.extend(reversed([worker for worker in workers if worker not in busy]))
    for _, failure in found:
        if failure is not None:
            raise failure
    return [answer for answer, _ in found]


def tell(seconds: float) -> None:
    """Tell the web page that runs Python to end Python after `seconds` (0: never). The page replaces this function."""


def alone(work: Callable[[], Any], seconds: float) -> Any:
    """Return the result of `work()`, run in this thread. `tell` gives the page `seconds` as the time limit."""
    global _limit
    before, _limit = _limit, seconds
    tell(seconds)
    try:
        with kept_numpy():
            return work()
    finally:
        _limit = before
        tell(before)


def idle_threads() -> list[threading.Thread]:
    """Return the threads that wait for work, and so are not in a subject's code."""
    return [worker.thread for worker in _idle]


def abandoned_threads() -> list[threading.Thread]:
    """Return the threads that were abandoned and are still at work."""
    _abandoned[:] = [thread for thread in _abandoned if thread.is_alive()]
    return list(_abandoned)


def _wait(answers: SimpleQueue[Answer], deadline: float) -> Answer:
    """The next answer; Empty if there is none in time. It waits in short steps, so that an interrupt gets through."""
    while True:
        left = deadline - time.monotonic()
        try:
            return answers.get(timeout=max(0.0, min(left, 0.1)))
        except Empty:
            if left <= 0.1:
                raise


STREAMS = ("stdout", "stderr")

_spare: dict[str, int] = {}
"""Stream -> a duplicate of its file descriptor, from which it is opened again if a subject closes it."""


def spare_streams() -> None:
    """Duplicate stdout and stderr, to reopen them if a subject closes them. Only the command `mha` does this."""
    for name in STREAMS:
        _spare[name] = os.dup(getattr(sys, name).fileno())


@contextmanager
def kept_surroundings() -> Iterator[None]:
    """Return a context that restores stdout and stderr at its end, and the recursion limit if it was lowered.

    Without this context, a subject that closes a stream, or redirects it and hangs, would suppress the report.
    """
    streams = {name: getattr(sys, name) for name in STREAMS}
    depth = sys.getrecursionlimit()
    try:
        yield
    finally:
        if sys.getrecursionlimit() < depth:
            sys.setrecursionlimit(depth)
        for name, stream in streams.items():
            if name in _spare:
                stream = _open(name, stream)
            if getattr(sys, name) is not stream:
                setattr(sys, name, stream)


@contextmanager
def kept_numpy() -> Iterator[None]:
    """Return a context that restores NumPy's functions and settings, and Python's built-in functions, at its end."""
    import numpy as np  # the command line imports this module, and its help needs no NumPy

    before = [(vars(module), dict(vars(module))) for module in (builtins, np, np.linalg)]
    options, errors = np.get_printoptions(), np.geterr()
    try:
        yield
    finally:
        for names, kept in before:
            names.update(kept)
        np.set_printoptions(**options)
        np.seterr(**errors)


def _open(name: str, stream: TextIO) -> TextIO:
    """The stream, or another one on the same file descriptor if somebody closed it."""
    number = STREAMS.index(name) + 1
    try:
        os.fstat(number)
    except OSError:
        os.dup2(_spare[name], number)
    if not stream.closed:
        return stream
    return open(number, "w", encoding=stream.encoding, errors=stream.errors, buffering=1, closefd=False)
