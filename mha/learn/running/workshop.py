"""The processes in which learners' files run: one for each framework, which is kept from exercise to exercise."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from conformance.subjects import in_time
from conformance.workers.described import Elsewhere
from conformance.workers.interpreters import LEARNERS, Home, Settings
from conformance.workers.protocol import TooLong, WorkerDied
from mha.learn.exercise import NUMPY
from mha.learn.running.dialects import prepare

LONGEST_ALONE = 10.0
"""Most seconds that a file may take where there is no process to end: a page that waits is ended."""

IMPORT_SECONDS = 180.0
"""Seconds that importing a framework may take."""


TOO_LONG = ": an endless loop, or far too much work"

MORE_TIME = f"{TOO_LONG}; a busy machine needs --time-limit 60"
"""The end of the message on a file that took too long, where --time-limit exists."""


def ask(dialect: str, seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `function(*arguments)`, called in a process that has imported a framework.

    Raises:
        TooLong: the function took longer than `seconds`; its process was ended.
        WorkerDied: the process ended; the message says how.
    """
    if dialect != NUMPY:
        _called(dialect, IMPORT_SECONDS, prepare, dialect)  # at once where it is imported already
    try:
        return _called(dialect, seconds, function, *arguments)
    except WorkerDied as death:
        if isinstance(death, TooLong):
            raise TooLong(f"no answer within {seconds:g} s{MORE_TIME}") from death
        raise


def too_long(seconds: float) -> str:
    """Return the message for a file that took longer than `seconds`. It names no option: users can't set the limit."""
    return f"no answer within {seconds:g} s{TOO_LONG}"


def home(dialect: str) -> Home:
    """Return the process in which files of a framework run."""
    return Home(f"{LEARNERS}{dialect}")


@cache
def why_not(dialect: str) -> str:
    """Return why a framework can't be used here, in one line; "" if it can."""
    if dialect == NUMPY:
        return ""
    try:
        return str(_called(dialect, IMPORT_SECONDS, prepare, dialect))
    except WorkerDied as death:
        return f"{dialect} can't be used here: {death}"


def _called(dialect: str, seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in the process of a framework, which is kept; raises what it raises, or WorkerDied."""
    if in_time.IS_ALONE:
        return in_time.alone(partial(function, *arguments), min(seconds, LONGEST_ALONE))
    return Elsewhere(home(dialect), Settings()).asked(seconds, object, function, *arguments)
