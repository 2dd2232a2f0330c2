"""What a process has one of, and a subject may change for everybody: its streams, and how deep calls may go."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

STREAMS = ("stdout", "stderr")

_spare: dict[str, int] = {}
"""Stream -> another file descriptor of the same, for the day when somebody closes it."""


def spare_streams() -> None:
    """Take care that streams that a subject closes can be opened again. For a process that is all ours."""
    for name in STREAMS:
        _spare[name] = os.dup(getattr(sys, name).fileno())


@contextmanager
def kept_surroundings() -> Iterator[None]:
    """After the block the streams are what they were, open, and calls may go at least as deep as before.

    A subject that turns its output elsewhere and hangs, or closes what it prints to, would take the report with it.
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
