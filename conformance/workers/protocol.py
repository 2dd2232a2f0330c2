"""What a worker process and the one that started it say to each other, over one connection.

The first message of the worker is a `Hello` in JSON, which any version of this project reads. Everything after it is
pickled tuples, whose first element is one of the words below.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from mha_core.files.source import source_hash

DISTRIBUTION = "mha-parity"

UNIT, CALL = "unit", "call"
"""Requests: (UNIT, unit, start); (CALL, function, arguments)."""

BEAT, ANSWER, RAISED, END = "beat", "answer", "raised", "end"
"""Messages of the worker: it is alive; an answer; an exception; the unit is done, or its rest needs a new process."""

BEAT_SECONDS = 0.5
"""How often a worker says that it is alive."""


@dataclass(frozen=True)
class Hello:
    """What a worker says of itself.

    Attributes:
        project: the version of this project that it has.
        code: a hash of that project's own files.
        python: the version of its interpreter.
        pid: its process number.
    """

    project: str
    code: str
    python: str
    pid: int

    @classmethod
    def of_this_process(cls) -> Hello:
        return cls(project_version(), code_hash(), platform.python_version(), os.getpid())

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Hello:
        """Raises ValueError or TypeError for anything else."""
        return cls(**json.loads(data))


def project_version() -> str:
    """The installed version; "source" if the project runs from its files alone."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "source"


@cache
def code_hash() -> str:
    """A hash of the files of this project that both sides must have in common."""
    return source_hash("mha_core", "conformance")
