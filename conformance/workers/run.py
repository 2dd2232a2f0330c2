"""Run units on an executor, and give their answers as they come."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future
from queue import Empty, SimpleQueue
from typing import Any

from conformance.workers.cluster import Cluster
from conformance.workers.execute import Stopped, Unit, execute
from conformance.workers.interpreters import Settings
from conformance.workers.local import Local
from conformance.workers.process import end_all
from mha_core.errors import one_line

_Event = tuple[int, int, Any]
"""Number of the unit, number of the item, its answer."""

WhyNot = Callable[[int, Any], str]
"""(number of a unit, its latest answer; None before the first) -> why it is not gone on with; "" if it is."""


def run_units(
    units: Sequence[Unit], executor: Executor, settings: Settings, why_not: WhyNot = lambda number, answer: ""
) -> Iterator[_Event]:
    """Run all units; yield (number of the unit, number of the item, answer) in order of completion, each item once.

    With a `Local` executor, each answer is yielded at once; with any other, all answers of a unit together. A unit at
    which a `Cluster` fails (its scheduler is gone, say) runs on this machine. If any other executor fails at a unit,
    the missing answers are those of `Unit.lost`. Closing this generator, or an interrupt, ends everything that runs.

    Args:
        units, executor, settings: the work, what runs it, and what processes are started with.
        why_not: (number of a unit, its latest answer) -> why its remaining items are skipped, or "". Only `Local` calls
            it, in its threads.
    """
    events: SimpleQueue[_Event | tuple[int, Future[list[Any]]]] = SimpleQueue()
    seen: set[tuple[int, int]] = set()
    stopped = threading.Event()
    futures: list[Future[list[Any]]] = []
    finished = False

    def submit(number: int, where: Executor) -> None:
        def say(item: int, answer: Any) -> None:
            if stopped.is_set():
                raise Stopped
            events.put((number, item, answer))
            go_on(answer)

        def go_on(answer: Any) -> None:
            if reason := why_not(number, answer):
                raise Stopped(reason)

        def begin(unit: Unit, settings: Settings) -> list[Any]:
            go_on(None)
            return execute(unit, settings, say)

        future = where.submit(begin if isinstance(where, Local) else execute, units[number], settings)
        futures.append(future)
        future.add_done_callback(lambda done: events.put((number, done)))

    elsewhere = executor if isinstance(executor, Cluster) else None
    given_back: set[int] = set()
    try:
        for number in range(len(units)):
            submit(number, executor)
        left = len(units)
        while left:
            try:
                event = events.get(timeout=0.2)  # in short steps, so that an interrupt gets through
            except Empty:
                if elsewhere is not None:
                    elsewhere.look()
                continue
            if len(event) == 2:
                number, future = event
                error = _error(future)
                if elsewhere is not None and error is not None and number not in given_back:
                    given_back.add(number)
                    submit(number, elsewhere.instead(error))
                    continue
                left -= 1
                answers = _answers(units[number], future, error)
                found = [(number, item, answer) for item, answer in enumerate(answers)]
            else:
                found = [event]
            for unit_number, item, answer in found:
                if (unit_number, item) not in seen:
                    seen.add((unit_number, item))
                    yield unit_number, item, answer
        finished = True
    finally:
        if not finished:
            stopped.set()
            for future in futures:
                future.cancel()
            executor.shutdown(wait=False, cancel_futures=True)
            end_all()


def _answers(unit: Unit, future: Future[list[Any]], error: BaseException | None) -> list[Any]:
    """All answers of a unit that is done; those of one that was given up say why."""
    if error is None:
        return future.result()
    reason = str(error) if isinstance(error, Stopped) else one_line(error)
    return [unit.lost(item, reason) for item in range(len(unit))]


def _error(future: Future[list[Any]]) -> BaseException | None:
    """What ended a future that is done instead of answers."""
    try:
        return future.exception()
    except CancelledError as error:
        return error
