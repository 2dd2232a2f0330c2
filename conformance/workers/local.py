"""Local: the executor on this machine. Its threads wait for worker processes, and choose what they do next."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from conformance.workers.execute import Unit, end_idle
from conformance.workers.interpreters import Home


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class _Job:
    future: Future[Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    home: Home | None
    cost: float


class Local(Executor):
    """An executor like `concurrent.futures.ThreadPoolExecutor`, but one that chooses which function to run next.

    A Unit of work needs a worker process of its Home, such as one framework. A thread does all units of one Home first,
    since its process has imported that framework. Then it takes the most expensive Home that no thread works on, so
    that all threads end at about the same time. If every Home has a thread, several threads share one Home.

    Args:
        workers: how many threads, and so how many processes work at a time. None: one for each core.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = cores() if workers is None else workers
        self._jobs: list[_Job] = []
        self._serving: dict[int, Home | None] = {}
        self._changed = threading.Condition()
        self._is_shut = False
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Submit a function; return its Future. If its first argument is a Unit, a process for `Unit.home` is used."""
        if named:
            raise TypeError("arguments by name are not taken")
        unit = arguments[0] if arguments and isinstance(arguments[0], Unit) else None
        home, cost = (None, 0.0) if unit is None else (unit.home, unit.cost)
        job = _Job(Future(), function, arguments, home, cost)
        with self._changed:
            if self._is_shut:
                raise RuntimeError("this executor has been shut down")
            self._jobs.append(job)
            if len(self._threads) < self.workers:
                thread = threading.Thread(target=self._work, args=(len(self._threads),), daemon=True, name="mha-lane")
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down as `concurrent.futures.Executor` does. Idle worker processes keep running."""
        with self._changed:
            self._is_shut = True
            if cancel_futures:
                for job in self._jobs:
                    job.future.cancel()
                self._jobs.clear()
            self._changed.notify_all()
        if wait:
            for thread in self._threads:
                thread.join()

    def _work(self, number: int) -> None:
        while (job := self._next(number)) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                job.future.set_result(job.function(*job.arguments))
            except BaseException as error:  # it belongs to whoever waits for the result
                job.future.set_exception(error)

    def _next(self, number: int) -> _Job | None:
        """The job that thread `number` does next; None where there will be no more."""
        with self._changed:
            before = self._serving.pop(number, None)
            while not self._jobs:
                if self._is_shut:
                    return None
                self._changed.wait()
            chosen = self._chosen(before)
            self._jobs.remove(chosen)
            self._serving[number] = chosen.home
            left = {*self._serving.values(), *(job.home for job in self._jobs)}
        if before is not None and before not in left:
            end_idle(before)
        return chosen

    def _chosen(self, before: Home | None) -> _Job:
        homes: dict[Home | None, float] = {}
        for job in self._jobs:
            homes[job.home] = homes.get(job.home, 0.0) + job.cost
        if before in homes:
            home = before
        else:
            serving = list(self._serving.values())
            free = [home for home in homes if home not in serving]
            if free:
                home = max(free, key=homes.__getitem__)
            else:
                home = max(homes, key=lambda home: homes[home] / (1 + serving.count(home)))
        return next(job for job in self._jobs if job.home == home)
