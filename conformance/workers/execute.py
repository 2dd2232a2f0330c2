"""Run a unit of work in worker processes, and replace those that die; idle processes are kept for the next unit."""

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from conformance.workers.answering import answered
from conformance.workers.interpreters import OURS, Home, Settings
from conformance.workers.process import WorkerProcess
from conformance.workers.protocol import CannotStart, Unit, WorkerDied
from mha_core.errors import BackendError, one_line
from mha_core.files.kept import kept_folder

_Key = tuple[Home, str | None, Path | None]
"""Home, interpreter, and the folder of what is kept."""

_idle: dict[_Key, list[WorkerProcess]] = defaultdict(list)
_lock = threading.Lock()


def take(home: Home, settings: Settings) -> WorkerProcess:
    """Return an idle worker process for `home` (its purpose, such as one framework); a new one if none is idle.

    Raises:
        CannotStart: as `WorkerProcess`.
    """
    interpreter = settings.interpreter(home)
    with _lock:
        waiting = _idle[home, interpreter, kept_folder()]
        while waiting:
            process = waiting.pop()
            if process.is_alive:
                return process
            process.end()  # it died while it waited, which costs nobody anything
    return WorkerProcess(home, interpreter, start_limit=settings.import_limit)


def give_back(process: WorkerProcess) -> None:
    """Make a process idle, ready for later work; end it if code of its last unit still runs."""
    if process.is_spent:
        process.end()
        return
    with _lock:
        _idle[process.home, process.interpreter, kept_folder()].append(process)


def end_idle(home: Home | None = None) -> None:
    """End the idle processes of one home, or all."""
    with _lock:
        found = [key for key in _idle if home is None or key[0] == home]
        ended = [process for key in found for process in _idle.pop(key)]
    for process in ended:
        process.end()


class Strangers:
    """A sender of requests to worker processes (a `Line`), with one process for each framework or subject.

    Use it as a context manager: at the end the processes become idle.

    Args:
        settings: what processes are started with.
        unit: the unit of work for which the requests are sent. Default: none.
    """

    def __init__(self, settings: Settings, unit: Unit | None = None) -> None:
        self._settings = settings
        self._unit = unit
        self._held: dict[Home, WorkerProcess] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        while self._held:
            give_back(self._held.popitem()[1])

    def ask(self, home: Home, seconds: float | None, request: bytes) -> tuple[bytes, bytes]:
        """Return the answer to a request, as `Line.ask` does."""
        if self._settings.here and self._settings.interpreter(home) is None:
            return answered(request)
        process = self._held.pop(home, None) or take(home, self._settings)
        process.unit = self._unit
        try:
            kind, content = process.ask(request, seconds)
        except BaseException:  # it died; or an interrupt came, and its answer is still to come
            process.end()
            raise
        if process.is_spent:
            process.end()
        else:
            self._held[home] = process
        return kind, content


# Work -------------------------------------------------------------------------------------------------


def call(settings: Settings, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function called in a worker process that runs only this project's code.

    Subjects among `arguments` still run in their own processes.

    Raises:
        BackendError: the process can't be started, or died.
        Exception: what the function raises, if its class is this project's; else a BackendError.
    """
    process = take(OURS, settings)
    try:
        with Strangers(settings) as strangers:
            answer = process.call(function, *arguments, strangers=strangers)
    except BaseException as error:
        process.end()
        if isinstance(error, WorkerDied):
            raise BackendError(str(error)) from error
        raise
    give_back(process)
    return answer


class Stopped(BaseException):
    """An exception that the argument `say` of `execute` raises to end a unit when nobody waits for its answers."""


def execute(unit: Unit, settings: Settings, say: Callable[[int, Any], None] | None = None) -> list[Any]:
    """Do a unit of work in worker processes; return its answers, one for each item. Executors call this.

    If the worker process dies, the answer to its current item is `unit.lost(...)`; a new process does the rest.

    Args:
        settings: what processes are started with.
        say: called with the number of each item and its answer, as soon as it is there. None: not called.
    """
    answers: list[Any] = []

    def add(answer: Any) -> None:
        if say is not None:
            say(len(answers), answer)
        answers.append(answer)

    with Strangers(settings, unit) as strangers:
        while len(answers) < len(unit):
            try:
                process = take(OURS, settings)
            except CannotStart as error:
                while len(answers) < len(unit):
                    add(unit.lost(len(answers), str(error)))
                break
            before = len(answers)
            try:
                for answer in process.run(unit, before, strangers):
                    add(answer)
                if len(answers) == before:
                    raise RuntimeError("no answer came")
            except WorkerDied as death:
                if len(answers) < len(unit):
                    add(unit.lost(len(answers), str(death)))
            except Exception as error:  # a mistake of ours, outside of what is judged
                process.end()
                add(unit.lost(len(answers), one_line(error)))
            except BaseException:
                process.end()
                raise
            else:
                give_back(process)
    return answers
