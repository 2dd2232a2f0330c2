"""Worker processes, seen from the one that starts them: start one, give it work, say how it ended, keep it."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from typing import IO, Any

from conformance.subjects.quiet import pass_on
from conformance.workers.guard import END_SECONDS, descendants
from conformance.workers.interpreters import IMPORT_SECONDS, Home, same_program
from conformance.workers.protocol import LEFT, CannotStart, Channel, Frame, Hello, Line, TooLong, Unit, WorkerDied
from mha_core.errors import LONGEST_REASON, install_command, shown

GRACE_SECONDS = 5.0
"""A process may be silent for so long beyond the limit of its home: a busy machine stops it too."""

MEANING = {"SIGKILL": "as the system does where memory runs out", "SIGSEGV": "a crash", "SIGABRT": "a crash"}
"""Signal -> what it mostly means."""

THREADS = ("OMP_NUM_THREADS",)
"""The environment variables that say how many threads a framework has. TensorFlow's own are not among them: with one
thread it takes a tenth less, but six answers in float64 have other bits than those that its users see."""

LONGEST_HELLO = 4096
"""Most bytes of what a process says first."""

PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop()) or sys.path
from conformance.workers.guard import stand_guard
stand_guard()
from conformance.workers.worker import main
main()
"""
"""What a worker runs. The last argument is the path of this process for the same interpreter, and empty for another."""


_all: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()
"""Those that run."""


class WorkerProcess:
    """A worker process, started when it is made.

    Args:
        home: what the process is for.
        interpreter: the path of its Python; None: the Python that runs this process.
        threads: how many threads a framework may use, unless the environment variables in `THREADS` are set. None: the
            framework's default. More threads than cores make a small operation a hundred times slower.
        start_limit: seconds for the interpreter to start and to import what every worker needs of this project.

    Attributes:
        hello: its first message, about itself.
        is_ready: whether that message has come.
        unit: its present or last unit of work; None before the first.
        is_spent: whether it must not be used again: a thread or a forbidden child process still runs in it.

    Raises:
        CannotStart: the interpreter lacks this project, has another version of it, or does not start.
    """

    def __init__(
        self,
        home: Home,
        interpreter: str | None = None,
        threads: int | None = 1,
        *,
        start_limit: float = IMPORT_SECONDS,
    ) -> None:
        self.home = home
        self.is_ready = self.is_spent = False
        self.unit: Unit | None = None
        self.interpreter = interpreter
        self._silence = home.time_limit + GRACE_SECONDS
        self._deadline: float | None = None
        if sys.platform == "win32":
            raise CannotStart("the processes of frameworks and subjects need Linux or macOS; on Windows, use WSL")
        ours, theirs = socket.socketpair()
        path = [entry or os.getcwd() for entry in sys.path] if same_program(interpreter) else []
        self._channel = Channel(ours, self._check_time)
        printed, printing = os.pipe()
        with theirs, tempfile.TemporaryFile() as words, os.fdopen(printing, "wb") as stderr:
            given = [
                str(theirs.fileno()),
                str(stderr.fileno()),
                str(self._silence),
                str(home.is_ours),
                json.dumps(path),
            ]
            try:
                self._process = subprocess.Popen(
                    [interpreter or sys.executable, "-P", "-c", PROGRAM, *given],
                    stdin=subprocess.PIPE,  # closed when this process ends, which the guard sees
                    stdout=stderr,  # what a subject prints is no part of a report, and is said hundreds of times
                    stderr=words,  # until it has started: why it did not is one line of ours
                    pass_fds=[theirs.fileno(), stderr.fileno()],
                    start_new_session=True,
                    env={**({} if threads is None else dict.fromkeys(THREADS, str(threads))), **os.environ},
                )
            except OSError as error:
                ours.close()
                os.close(printed)
                raise CannotStart(f"{self.where} can't be started: {error.strerror}") from error
            self._printed = pass_on(printed, home.name)
            theirs.close()  # so that the end of the process can be seen
            _all.add(self)
            self.hello = self._greeted(words, start_limit)
            self.is_ready = True

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None and not self._channel.is_closed

    @property
    def has_left_processes(self) -> bool:
        """Return whether child processes of the worker still run; False on other systems than Linux."""
        return sys.platform == "linux" and len(descendants(self._process.pid)) > 1  # the worker is one

    @property
    def where(self) -> str:
        """Return the process in words: its interpreter, and its home."""
        return f"the interpreter {shown(self.interpreter or sys.executable)} of {self.home.name}"

    def _greeted(self, words: IO[bytes], limit: float) -> Hello:
        """The first message. Ends the process and raises CannotStart if it isn't one of the same project.

        Args:
            words: the file that the process writes its errors to.
            limit: seconds until it must have come.
        """
        try:
            try:
                self._wait_for(limit)
                self._silent = math.inf  # it can't give signs of life yet
                hello = Hello.from_bytes(self._received(LONGEST_HELLO)[1])
            except (WorkerDied, ValueError, TypeError, RecursionError) as error:  # the last of JSON nested deep
                words.seek(0)
                last = (words.read().decode(errors="replace").strip().splitlines() or [str(error)])[-1]
                if isinstance(error, TooLong):
                    last = f"it said nothing within {limit:g} s (--import-limit)"
                how = ""
                if re.search("No module named '?(conformance|mha)", last):
                    how = f"; install this project there: {self.interpreter or sys.executable} -m {install_command()}"
                raise CannotStart(
                    f"{self.where} does not run mha-parity: {shown(last, LONGEST_REASON)}{how}"
                ) from error
            if difference := hello.difference():
                raise CannotStart(f"{self.where} {difference}")
        except BaseException:
            self.end()
            raise
        return hello

    def run(self, unit: Unit, start: int, strangers: Line) -> Iterator[Any]:
        """Return an iterator over a unit's answers from item `start` on. The process must run this project's code only.

        Args:
            strangers: the Line by which the unit sends requests to the processes of frameworks and subjects.

        Raises:
            WorkerDied: the process ended, or was silent or busy with one item beyond its limit.
            Exception: what the unit raised.
        """
        self.unit = unit
        return self._answers((unit, start), self.home.time_limit + GRACE_SECONDS, strangers)

    def call(
        self, function: Callable[..., Any], *arguments: Any, seconds: float | None = None, strangers: Line | None = None
    ) -> Any:
        """Run `function(*arguments)` in a process of this project's own code; return its result or raise its error.

        Args:
            function, arguments: a module-level function, and its arguments.
            seconds: the time that the call may take. None: no limit, as long as the process gives signs of life.
            strangers: as for `run`.

        Raises:
            WorkerDied: as `run`.
        """
        (answer,) = self._answers((function, *arguments), seconds, strangers)
        return answer

    def _answers(self, request: tuple[Any, ...], seconds: float | None, strangers: Line | None) -> Iterator[Any]:
        for kind, content in self.exchange(pickle.dumps(request), seconds):
            if kind == Frame.ASK and strangers is not None:
                try:
                    found = strangers.ask(*pickle.loads(content))
                except (CannotStart, WorkerDied) as death:
                    found = Frame.DIED, str(death).encode()
                self._send(*found)
            elif kind == Frame.RAISED:
                raise pickle.loads(content)
            else:
                yield pickle.loads(content)

    def ask(self, request: bytes, seconds: float | None) -> tuple[bytes, bytes]:
        """Send a request to a framework's or subject's process; return the kind and content of its one answer."""
        try:
            ((kind, content),) = self.exchange(request, seconds)
        except ValueError:  # it says more or less than it was asked
            raise self._died("it sent what is no answer, so its process was ended") from None
        return kind, content

    def exchange(self, request: bytes, seconds: float | None) -> Iterator[tuple[bytes, bytes]]:
        """Send a request; yield kind and content of each frame of the answer, except signs of life.

        Args:
            seconds: the time until the next frame. None: no limit, as long as the process gives signs of life.

        Raises:
            WorkerDied: it ended, or had to be ended.
        """
        self._wait_for(seconds)
        self._send(Frame.REQUEST, request)
        while True:
            self._wait_for(seconds)
            while (frame := self._received())[0] == Frame.BEAT:
                pass
            kind, content = frame
            if kind == Frame.END:
                self.is_spent = content == LEFT or (not self.home.keeps_processes and self.has_left_processes)
                return
            yield kind, content

    def _wait_for(self, seconds: float | None) -> None:
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._silent = time.monotonic() + self._silence

    def _check_time(self) -> None:
        """WorkerDied if nothing has come until the deadline, or no whole frame within the limit of silence."""
        now = time.monotonic()
        if now > self._silent:
            raise self._died(f"no sign of life within {self._silence:g} s, so its process was ended")
        if self._deadline is not None and now > self._deadline:
            raise self._died("no answer in time, so its process was ended", TooLong)

    def _died(self, how: str, kind: type[WorkerDied] = WorkerDied) -> WorkerDied:
        """End the process; the error that says how it ended, and which interpreter was asked for."""
        self.end()
        return kind(how if same_program(self.interpreter) else f"{how} ({self.where})")

    def _send(self, kind: bytes, content: bytes) -> None:
        try:
            self._channel.send(kind, content)
        except OSError:
            raise self._died(self._how_it_ended()) from None

    def _received(self, *most: int) -> tuple[bytes, bytes]:
        try:
            frame = self._channel.receive(*most)
        except (EOFError, OSError):
            raise self._died(self._how_it_ended()) from None
        except ValueError as error:
            raise self._died(f"it sent {error}, so its process was ended") from error
        self._silent = time.monotonic() + self._silence
        return frame

    def _how_it_ended(self) -> str:
        """The end of a process that closed its connection, in words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        status = self._process.poll()
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
        """End the process and the processes that it started. The call may be repeated."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if sys.platform == "linux":
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS + GRACE_SECONDS)
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._channel.close()
        self._printed.join(GRACE_SECONDS / 10)  # a child of a child may hold the pipe open
        _all.discard(self)


def running() -> list[WorkerProcess]:
    """Return every worker of this process that has not ended."""
    return list(_all)


@atexit.register
def end_all() -> None:
    """End every worker of this process."""
    for process in running():
        process.end()
