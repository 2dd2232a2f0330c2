"""The worker process: answers requests. `process.py` starts it and talks to it."""

import faulthandler
import gc
import os
import pickle
import signal
import socket
import sys
import threading
import time
from functools import cache
from typing import Any, TextIO

import conformance
import mha_core
from conformance.subjects.in_time import abandoned_threads
from conformance.workers.answering import LOOKS, answered
from conformance.workers.described import use_line
from conformance.workers.interpreters import Home
from conformance.workers.protocol import BEAT_SECONDS, LEFT, Channel, Frame, Hello, Unit, WorkerDied
from mha_core.errors import ErrorElsewhere, one_line

ALONE_SECONDS = 60.0
"""If this process can't run Python for so long beyond its limit, it ends itself: who started it may be gone."""


def main() -> None:
    """Serve requests from a socket. `sys.argv` has, in order: the socket's file descriptor; one that becomes stderr;
    the seconds of silence that the other side allows; "True" if only this project's code runs here, else "False".
    """
    connection = socket.socket(fileno=int(sys.argv[1]))
    silence, is_ours = float(sys.argv[3]), sys.argv[4] == "True"
    os.dup2(int(sys.argv[2]), 2)
    os.close(int(sys.argv[2]))
    # An interrupt is for the process that started this one, which then ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = _Link(connection)
    link.send(Frame.HELLO, Hello.of_this_process().to_bytes())
    threading.Thread(target=_beat, args=(link, silence + ALONE_SECONDS), name="mha-beat", daemon=True).start()
    if is_ours:
        use_line(_Line(link))
        gc.set_threshold(LOOKS)
    while (request := link.receive()) is not None:
        link.set_busy(True)
        if is_ours:
            _serve(link, request)
        else:
            link.send(*answered(request))
        link.send(Frame.END, LEFT if abandoned_threads() else b"")
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
    """The connection, and whether somebody waits at its other end."""

    def __init__(self, connection: socket.socket) -> None:
        self._channel = Channel(connection)
        self._alarm = threading.Lock()
        self._busy = threading.Event()
        self.send = self._channel.send

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

    def receive(self) -> bytes | None:
        """Return the content of the next request; None where the other side is gone."""
        try:
            return self._channel.receive()[1]
        except (EOFError, OSError):
            return None

    def asked(self, question: bytes) -> tuple[bytes, bytes]:
        """Ask the other side, and wait for its answer: its kind and content."""
        self.send(Frame.ASK, question)
        return self._channel.receive()


def _beat(link: _Link, alone: float) -> None:
    """Say that this process is alive while it works and can run Python, and end it where nobody listens."""
    while True:
        link.wait_until_busy(alone)
        try:
            link.send(Frame.BEAT)
        except OSError:
            os.killpg(0, signal.SIGKILL)  # a group of its own: this process, and what a subject started
        time.sleep(BEAT_SECONDS)


@cache
def _nowhere() -> TextIO:
    return open(os.devnull, "w")  # one file for the life of the process


# In a process of ours ------------------------------------------------------------------------------------


class _Line:
    """The way from here to the processes of frameworks and subjects: through the process that started this one."""

    def __init__(self, link: _Link) -> None:
        self._link = link

    def ask(self, home: Home, seconds: float | None, request: bytes) -> tuple[bytes, bytes]:
        """As `Line.ask`."""
        kind, content = self._link.asked(pickle.dumps((home, seconds, request)))
        if kind == Frame.DIED:
            raise WorkerDied(content.decode())
        return kind, content


def _serve(link: _Link, request: bytes) -> None:
    """Do a unit from number `start` on, or call a function."""
    try:
        work, *content = pickle.loads(request)
        if isinstance(work, Unit):
            for answer in work.run(*content):
                link.send(Frame.ANSWER, pickle.dumps(answer))
        else:
            link.send(Frame.ANSWER, pickle.dumps(work(*content)))
    except BaseException as error:  # who asked is to know
        link.send(Frame.RAISED, pickle.dumps(plain(error)))


def plain(error: BaseException) -> Any:
    """Return the error if its class is this project's, so that the other process can read it; else an ErrorElsewhere.

    >>> plain(KeyError("a"))
    ErrorElsewhere("KeyError: 'a'")
    """
    if type(error).__module__.startswith((f"{mha_core.__name__}.", f"{conformance.__name__}.")):
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return ErrorElsewhere(one_line(error))
        return error
    return ErrorElsewhere(one_line(error))
