"""Restores what a subject may change for the whole process: streams, the recursion limit; where it is alone, NumPy."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

STREAMS = ("stdout", "stderr")

_spare: dict[str, int] = {}
"""Stream -> a duplicate of its file descriptor, from which it is opened again if a subject closes it."""


def spare_streams() -> None:
    """Duplicate stdout and stderr, so that they can be reopened if a subject closes them. Only for our own program."""
    for name in STREAMS:
        _spare[name] = os.dup(getattr(sys, name).fileno())


@contextmanager
def kept_surroundings() -> Iterator[None]:
    """Return a context after which stdout and stderr are open and as before, and the recursion limit is no lower.

    Otherwise a subject that redirects its output and hangs, or closes a stream, would suppress the report.
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


@contextmanager
def kept_numpy() -> Iterator[None]:
    """Return a context after which NumPy's and Python's own functions are what they were, whatever was put there."""
    import numpy as np  # the command line imports this module, and its help needs no NumPy

    before = [(vars(module), dict(vars(module))) for module in (builtins, np, np.linalg)]
    options, errors = np.get_printoptions(), np.geterr()
    try:
        yield
    finally:
        for names, kept in before:
            names.update(kept)
        np.set_printoptions(**options)
        np.seterr(**errors)


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
