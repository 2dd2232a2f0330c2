"""What a worker process and the one that started it say to each other: frames over one socket.

A frame has a length, a kind and content. The first of a worker is a `Hello` in JSON, which any version of this project
reads. A process that imports no framework and nobody's module (`Home.is_ours`) takes and gives pickles; with any other,
only what `wire` makes goes to and fro. A request is answered by one frame or several, and by END.
"""

import json
import os
import platform
import select
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol, Self

import conformance
import mha_core
from conformance.workers.interpreters import Home
from mha_core.errors import BackendError, shown
from mha_core.files.source import source_hash

DISTRIBUTION = "mha-parity"


class Frame:
    """The kinds of frames."""

    HELLO = b"h"  # what a worker is
    REQUEST = b"r"  # work for a worker
    BEAT = b"b"  # the worker is alive
    ANSWER = b"a"  # what a function gave
    RAISED = b"e"  # an exception
    END = b"."  # the request is done
    ASK = b"q"  # a process of ours asks somebody's process; the answer is passed back unread
    DIED = b"d"  # that process died; the reason in words


LEFT = b"left"
"""Content of END: a thread of this request is still at work, so the process is to be ended."""

BEAT_SECONDS = 0.5
"""How often a worker says that it is alive."""

MOST_BYTES = 2**31
"""Most bytes of a frame: all stages and gradients of the largest case take a tenth of that."""

POLL_SECONDS = 0.2
"""How often somebody who waits looks whether it is worth while."""

_HEADER = struct.Struct("!Qc")


class CannotStart(BackendError):
    """An error: a worker process can't be started, or has another version of this project. The message is one line."""


class WorkerDied(RuntimeError):
    """An error: a worker process ended, or had to be ended, before it answered. The message says how, in one line."""


class TooLong(WorkerDied):
    """A worker process that did not answer in time, and was ended."""


class Unit(ABC):
    """A unit of work: items, such as cases, on one subject. A worker process does them in order.

    Units and answers are pickled. The worker process runs only this project's code; another process runs the subject.
    """

    @property
    @abstractmethod
    def home(self) -> Home:
        """Return the Home (purpose of a process) of the subject: a framework, a user's module, or this project."""

    @property
    def cost(self) -> float:
        """Return about how long the work takes, in arbitrary units; the longest work of a run starts first."""
        return float(len(self))

    @abstractmethod
    def __len__(self) -> int:
        """The number of items."""

    @abstractmethod
    def run(self, start: int) -> Iterator[Any]:
        """Yield the answer to each item from number `start` on, in the worker process."""

    @abstractmethod
    def lost(self, item: int, reason: str) -> Any:
        """Return an answer for an item that got none because its process ended. `reason`: why, in one line."""


class Line(Protocol):
    """A way to the processes of frameworks and subjects."""

    def ask(self, home: Home, seconds: float | None, request: bytes) -> tuple[bytes, bytes]:
        """Send a request to the process of a Home; return Frame.ANSWER or Frame.RAISED, and the answer's content.

        Args:
            request: the request in bytes; see `conformance.workers.answering`.
            seconds: the time that it may take. None: no limit, as long as the process gives signs of life.

        Raises:
            CannotStart: the process can't be started.
            WorkerDied: it ended, or had to be ended.
        """


class Channel:
    """A sender and receiver of frames over a socket. One thread receives; any may send.

    Args:
        connection: the socket, connected to the other side.
        patience: called now and then while nothing comes or goes; it raises to end the wait. None: wait for ever.
    """

    def __init__(self, connection: socket.socket, patience: Callable[[], None] | None = None) -> None:
        self._socket = connection
        self._patience = patience
        self._lock = threading.Lock()
        connection.settimeout(None if patience is None else POLL_SECONDS)

    @property
    def is_closed(self) -> bool:
        """Return whether the other side has closed the connection, and nothing is left to receive."""
        try:
            return bool(select.select([self._socket], [], [], 0)[0] and not self._socket.recv(1, socket.MSG_PEEK))
        except (OSError, ValueError):  # closed here
            return True

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send a frame. Raises OSError if the other side is gone, or what `patience` raises to end the wait."""
        with self._lock:
            for part in (_HEADER.pack(len(content), kind), content):
                view = memoryview(part)
                while view:
                    try:
                        view = view[self._socket.send(view) :]
                    except TimeoutError:
                        self._wait()

    def receive(self, most: int = MOST_BYTES) -> tuple[bytes, bytes]:
        """Return the kind and content of the next frame.

        Raises:
            EOFError: the other side is gone.
            ValueError: the other side announces a frame of more than `most` bytes.
            Exception: the channel's function `patience` raised it to end the wait.
        """
        length, kind = _HEADER.unpack(self._exactly(_HEADER.size))
        if length > most:
            raise ValueError(f"a message of {length} bytes; at most {most} are read")
        return kind, bytes(self._exactly(length))

    def _exactly(self, length: int) -> bytearray:
        found = bytearray()
        while len(found) < length:
            try:
                part = self._socket.recv(min(length - len(found), 2**20))
            except TimeoutError:
                self._wait()
                continue
            if not part:
                raise EOFError
            found += part
        return found

    def _wait(self) -> None:
        assert self._patience is not None
        self._patience()

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True)
class Hello:
    """A worker's message about itself.

    Attributes:
        project: the version of this project in the worker.
        code: a hash of the files of this project in the worker.
        python, pid: the version of its Python, and its process id.
    """

    project: str
    code: str
    python: str
    pid: int

    @classmethod
    def of_this_process(cls) -> Self:
        return cls(project_version(), code_hash(), platform.python_version(), os.getpid())

    def difference(self) -> str:
        """Return in words why this process can't use the worker, such as another version; "" if it can."""
        if self.project != project_version():
            return f"has mha-parity {shown(self.project)}; this is {project_version()}"
        if self.code != code_hash():
            return f"has mha-parity {self.project} with other code; install this one there"
        return ""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the Hello that these bytes encode. Raises ValueError or TypeError for anything else."""
        return cls(**json.loads(data))


def project_version() -> str:
    """Return the installed version; "source" if the project runs from its files alone."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "source"


@cache
def code_hash() -> str:
    """Return a hash of the files of this project that this process and its workers must have in common."""
    return source_hash(mha_core, conformance)
