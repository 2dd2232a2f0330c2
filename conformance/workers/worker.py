"""The worker process: does units item by item, and answers calls. `process.py` starts it and talks to it."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, TextIO

from conformance.subjects.in_time import abandoned_threads
from conformance.workers.protocol import ANSWER, BEAT, BEAT_SECONDS, END, RAISED, UNIT, Hello
from conformance.workers.unit import Unit
from mha_core.errors import BackendError, one_line

ALONE_SECONDS = 60.0
"""If this process can't run Python for so long beyond its limit, it ends itself: who started it may be gone."""


def main() -> None:
    """Serve a connection. Arguments: its file descriptor, that of stderr from now on, and the limit of silence."""
    connection, silence = Connection(int(sys.argv[1])), float(sys.argv[3])
    os.dup2(int(sys.argv[2]), 2)
    os.close(int(sys.argv[2]))
    # An interrupt is for the process that started this one, which then ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = _Link(connection)
    connection.send_bytes(Hello.of_this_process().to_bytes())
    threading.Thread(target=_beat, args=(link, silence + ALONE_SECONDS), name="mha-beat", daemon=True).start()
    while (data := link.receive()) is not None:
        link.set_busy(True)
        try:
            kind, *content = pickle.loads(data)
            if kind == UNIT:
                _unit(link, *content)
            else:
                link.send(ANSWER, _called(*content))
        except BaseException as error:  # what a framework or a subject raises belongs to who asked
            link.send(RAISED, plain(error))
        link.set_busy(False)
    _end()


def _end() -> None:
    """End without asking anybody: threads of a framework, or of a subject that hangs, may be at work."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed by a subject, or by the reader of a pipe
            continue
    os._exit(0)


class _Link:
    """The connection, for two threads."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()
        self._alarm = threading.Lock()
        self._busy = threading.Event()

    def set_busy(self, busy: bool) -> None:
        """Whether somebody waits for an answer: signs of life that nobody reads would fill the connection."""
        with self._alarm:
            if busy:
                self._busy.set()
            else:
                self._busy.clear()
                faulthandler.cancel_dump_traceback_later()

    def wait_until_busy(self, alone: float) -> None:
        """Wait for work, and let the process be ended if Python can't run for `alone` seconds from now."""
        while True:
            self._busy.wait()
            with self._alarm:
                if self._busy.is_set():
                    # It is not a thread of Python that would end the process then, so it needs no lock.
                    faulthandler.dump_traceback_later(alone, exit=True, file=_nowhere())
                    return

    def send(self, *message: Any) -> None:
        data = pickle.dumps(message)
        with self._lock:
            self.connection.send_bytes(data)

    def receive(self) -> bytes | None:
        """The next request, pickled; None where the other side is gone."""
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            return None


def _beat(link: _Link, alone: float) -> None:
    """Say that this process is alive while it works and can run Python, and end it where nobody listens."""
    while True:
        link.wait_until_busy(alone)
        try:
            link.send(BEAT)
        except OSError:
            os.killpg(0, signal.SIGKILL)  # a group of its own: this process, and what a subject started
        time.sleep(BEAT_SECONDS)


@cache
def _nowhere() -> TextIO:
    return open(os.devnull, "w")  # one file for the life of the process


def _unit(link: _Link, unit: Unit, start: int) -> None:
    """Do the items of a unit from number `start` on."""
    for answer in unit.run(start):
        link.send(ANSWER, answer)
        if abandoned_threads():  # a thread of the last item goes on in here: a new process does the rest
            break
    link.send(END)


def _called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def plain(error: BaseException) -> BaseException:
    """The error itself if it is of this project, else one of ours with its message: the other side may lack its class.

    >>> plain(KeyError("a"))
    BackendError("KeyError: 'a'")
    """
    if type(error).__module__.partition(".")[0] in ("mha_core", "conformance"):
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return BackendError(one_line(error))
        return error
    return BackendError(one_line(error))
