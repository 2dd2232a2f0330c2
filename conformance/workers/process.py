"""A worker process, seen from the one that starts it: start it, give it work, and say how it ended."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import IO, Any

from conformance.workers.interpreters import Home, same_program
from conformance.workers.protocol import BEAT, CALL, END, RAISED, UNIT, Hello
from conformance.workers.unit import Unit
from mha_core.errors import LONGEST_REASON, BackendError, shown

START_SECONDS = 60.0
"""Time for an interpreter to start and to import the part of this project that is needed everywhere."""

GRACE_SECONDS = 5.0
"""A process may be silent for so long beyond the limit of its home: a busy machine stops it too."""

MEANING = {"SIGKILL": "as the system does where memory runs out", "SIGSEGV": "a crash", "SIGABRT": "a crash"}
"""Signal -> what it mostly means."""

THREADS = ("OMP_NUM_THREADS",)
"""The environment variables that say how many threads a framework has. TensorFlow's own are not among them: with one
thread it takes a tenth less, but six answers in float64 have other bits than those that its users see."""

ASKS = 5
"""How often a subject may be asked in one item, each time within its limit; see `conformance.judging.repeats`."""

PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop()) or sys.path
from conformance.workers.worker import main
main()
"""
"""What a worker runs. The last argument is the path of this process for the same interpreter, and empty for another."""


class CannotStart(BackendError):
    """A worker process that can't be started, or has another version of this project; the message is one line."""


class WorkerDied(RuntimeError):
    """A worker process that ended, or had to be ended, before it answered; the message says how, in one line."""


_all: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()
"""Those that run."""


class WorkerProcess:
    """A process that was started and has said what it is.

    Args:
        home: what it is for.
        interpreter: the program; None for the one that runs this.
        threads: how many threads a framework has (see `THREADS`), unless the environment says it. More of them than
            cores wait for each other in turn, which makes a small operation a hundred times slower. None: as many as
            it takes by itself.

    Attributes:
        hello: what it said.
        is_ready: whether it has said it.
        unit: what it does, or did last.

    Raises:
        CannotStart: it lacks this project, has another version of it, or does not start.
    """

    def __init__(self, home: Home, interpreter: str | None = None, threads: int | None = 1) -> None:
        self.home = home
        self.is_ready = False
        self.unit: Unit | None = None
        self.interpreter = interpreter
        self._silence = home.time_limit + GRACE_SECONDS
        ours, theirs = socket.socketpair()
        path = [entry or os.getcwd() for entry in sys.path] if same_program(interpreter) else []
        with theirs, tempfile.TemporaryFile() as words, os.fdopen(os.dup(2), "wb") as stderr:
            given = [str(theirs.fileno()), str(stderr.fileno()), str(self._silence), json.dumps(path)]
            try:
                self._process = subprocess.Popen(
                    [interpreter or sys.executable, "-P", "-c", PROGRAM, *given],
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,  # what a subject prints is no part of a report, and is said hundreds of times
                    stderr=words,  # until it has started: why it did not is one line of ours
                    pass_fds=[theirs.fileno(), stderr.fileno()],
                    start_new_session=True,
                    env={**({} if threads is None else dict.fromkeys(THREADS, str(threads))), **os.environ},
                )
            except OSError as error:
                ours.close()
                raise CannotStart(f"{self._where} can't be started: {error.strerror}") from error
            self._connection = Connection(ours.detach())
            theirs.close()  # so that the end of the process can be seen
            _all.add(self)
            self.hello = self._greeted(words)
            self.is_ready = True

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def _where(self) -> str:
        return f"the interpreter {shown(self.interpreter or sys.executable)} of {self.home.name}"

    def _greeted(self, words: IO[bytes]) -> Hello:
        """The first message. Ends the process and raises CannotStart if it isn't one of the same project.

        Args:
            words: the file that the process writes its errors to.
        """
        try:
            try:
                hello = Hello.from_bytes(self._received(time.monotonic() + START_SECONDS))
            except (WorkerDied, ValueError, TypeError) as error:
                words.seek(0)
                last = (words.read().decode(errors="replace").strip().splitlines() or [str(error)])[-1]
                raise CannotStart(f"{self._where} does not run mha-parity: {shown(last, LONGEST_REASON)}") from error
            own = Hello.of_this_process()
            if hello.project != own.project:
                raise CannotStart(f"{self._where} has mha-parity {shown(hello.project)}; this is {own.project}")
            if hello.code != own.code:
                raise CannotStart(f"{self._where} has mha-parity {own.project} with other code; install this one there")
        except BaseException:
            self.end()
            raise
        return hello

    def run(self, unit: Unit, start: int) -> Iterator[Any]:
        """The answers of a unit from item `start` on; it may end early, and the process is then ended.

        Raises:
            WorkerDied: the process ended, or was silent or busy with one item beyond its limit.
            Exception: what the unit raised.
        """
        self.unit = unit
        self._send(UNIT, unit, start)
        limit = ASKS * self.home.time_limit + GRACE_SECONDS
        while True:
            kind, *content = self._answer(limit)
            if kind == END:
                return
            yield content[0]

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float | None = None) -> Any:
        """What `function(*arguments)` returns there, or raises; it is a function of a module.

        Args:
            function, arguments: what to call.
            seconds: the time that it may take. None: any, as long as the process gives signs of life.

        Raises:
            WorkerDied: as `run`.
        """
        self._send(CALL, function, arguments)
        _, answer = self._answer(seconds)
        return answer

    def _send(self, *request: Any) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(request))
        except OSError:
            raise WorkerDied(self._how_it_ended()) from None

    def _answer(self, seconds: float | None) -> Any:
        """The next message that is no sign of life; raises what it holds if that is an exception."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            kind, *content = pickle.loads(self._received(deadline))
            if kind == RAISED:
                raise content[0]
            if kind != BEAT:
                return kind, *content

    def _received(self, deadline: float | None) -> bytes:
        """The next message; WorkerDied if there is none until `deadline`, or within the limit of silence."""
        silent = time.monotonic() + self._silence
        try:
            while not self._connection.poll(0.2):
                now = time.monotonic()
                if now > silent:
                    self.end()
                    raise WorkerDied(f"no sign of life within {self._silence:g} s, so its process was ended")
                if deadline is not None and now > deadline:
                    self.end()
                    raise WorkerDied("no answer in time, so its process was ended")
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise WorkerDied(self._how_it_ended()) from None

    def _how_it_ended(self) -> str:
        """The end of a process that closed its connection, in words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        status = self._process.poll()
        self.end()
        if status is None:
            return "its process closed its connection"
        if status >= 0:
            return f"its process ended itself with status {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"its process was ended by {name}" + (f" ({MEANING[name]})" if name in MEANING else "")

    def end(self) -> None:
        """End the process and what it started. It may have ended already."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._connection.close()
        _all.discard(self)


def running() -> list[WorkerProcess]:
    """Every worker of this process that has not ended."""
    return list(_all)


@atexit.register
def end_all() -> None:
    """End every worker of this process."""
    for process in running():
        process.end()
