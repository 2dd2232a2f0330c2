"""Run a learner's file, in a worker process: nothing that it does reaches this program but arrays and a sentence."""

from __future__ import annotations

import importlib.util
import inspect
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformance.subjects.answers import SubjectFailed, as_array
from conformance.subjects.handout import Handout
from conformance.workers.wire import sendable
from mha.learn.exercise import NUMPY
from mha.learn.running.dialects import given, taken
from mha_core.errors import one_line, shown

KEPT = 2000
"""Most characters that are kept of what a file prints."""

Arrays = tuple[NDArray, ...]
Made = TypeVar("Made")


@sendable
@dataclass(frozen=True)
class Attempt:
    """A record of some calls of a learner's function, up to the first that fails.

    Attributes:
        answers: for each call that did not fail, the arrays that it returned.
        problem: why a call failed, in one line; "" if none did.
        begun: whether the function has been written: one that raises NotImplementedError has not.
        printed: the beginning of what the file printed.
    """

    answers: tuple[Arrays, ...] = ()
    problem: str = ""
    begun: bool = True
    printed: str = ""


@sendable
@dataclass(frozen=True)
class Asked:
    """A function to run, and its calls.

    Attributes:
        path, function, parameters: the file, the function in it, and the names of the function's parameters.
        returns: the names of the arrays that the function returns.
        calls: for each call, its arguments and the shapes of the arrays that it must return.
        dialect: the framework that the function is written in.
    """

    path: str
    function: str
    parameters: tuple[str, ...]
    returns: tuple[str, ...]
    calls: tuple[tuple[tuple[Any, ...], tuple[tuple[int, ...], ...]], ...]
    dialect: str


class Unfit(Exception):
    """An error: a learner's file can't be judged as an answer. The message tells the learner why, in one line."""


class NotBegun(Exception):
    """An error: the function still raises NotImplementedError, as in the file that was handed out."""


def attempt(asked: Asked) -> Attempt:
    """Import the file and make all calls, each with copies of its arguments. Return an Attempt with the answers."""
    answers, said = _made(
        lambda function, call: answer_of(asked, function, *call),
        asked.path,
        asked.function,
        asked.parameters,
        asked.calls,
    )
    return replace(said, answers=tuple(answers))


def measured(
    path: str, name: str, parameters: Sequence[str], calls: Sequence[tuple[Any, ...]]
) -> tuple[list[float], Attempt]:
    """Return (one number per call before the first failure, an Attempt). `Attempt.problem` says why a call failed."""

    def number(function: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
        value = called(function, arguments, path)
        if not isinstance(value, (int, float, np.number)) or isinstance(value, np.complexfloating):
            raise Unfit(f"it must return one number; it returned {type(value).__name__}")
        return float(value)

    return _made(number, path, name, parameters, calls)


def returned(
    path: str, name: str, parameters: Sequence[str], calls: Sequence[tuple[Any, ...]]
) -> tuple[list[dict[str, NDArray]], Attempt]:
    """Return (name -> array for each call up to the first failure, an Attempt whose `problem` is its reason, or "").

    An array that is returned alone has the name "".
    """
    return _made(lambda function, call: _by_name(name, function, call, path), path, name, parameters, calls)


def _made(
    make: Callable[[Callable[..., Any], Any], Made],
    path: str,
    name: str,
    parameters: Sequence[str],
    calls: Sequence[Any],
) -> tuple[list[Made], Attempt]:
    """What `make(function, call)` gives for each call, up to the first that fails; and why there is no further one."""
    made: list[Made] = []
    with captured() as printed:
        try:
            function = found(path, name, parameters)
            for call in calls:
                made.append(make(function, call))
        except NotBegun:
            return made, Attempt(problem=f"{name} is still to be written", begun=False)
        except (Unfit, SubjectFailed) as error:
            return made, Attempt(problem=shown(str(error), 300), printed=printed())
        return made, Attempt(printed=printed())


def _by_name(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], path: str) -> dict[str, NDArray]:
    flat: dict[str, NDArray] = {}
    for number, value in enumerate(arguments):
        for key, array in (value if isinstance(value, dict) else {"": value}).items():
            if isinstance(array, np.ndarray):
                flat[key or f"argument {number + 1}"] = array
    handout = Handout(flat)
    handed = [
        {key: handout.copies[key] for key in value}
        if isinstance(value, dict)
        else handout.copies.get(f"argument {number + 1}", value)
        for number, value in enumerate(arguments)
    ]
    answer = called(function, handed, path)
    named = answer if isinstance(answer, dict) else {"": answer}
    arrays = {str(key): as_array(str(key) or f"what {name} returns", value) for key, value in named.items()}
    unfit = [key or "what it returns" for key, array in arrays.items() if array.dtype.kind not in "fiu"]
    if unfit:
        raise Unfit(f"{unfit[0]} holds no real numbers")
    if handout.changed():
        raise Unfit(f"it wrote into its arguments: {', '.join(handout.changed())}")
    return arrays


@contextmanager
def captured(held: Beginning | None = None) -> Iterator[Callable[[], str]]:
    """Return a context that withholds printed text. Its value is a function that returns the beginning of the text.

    Args:
        held: the stream that keeps the text. Default: a new one.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    streams, terminals = (sys.stdout, sys.stderr), (os.dup(1), os.dup(2))
    held = Beginning() if held is None else held
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    sys.stdout = sys.stderr = held
    try:
        yield held.getvalue
    finally:
        sys.stdout, sys.stderr = streams
        for number, terminal in zip((1, 2), terminals, strict=True):
            os.dup2(terminal, number)
            os.close(terminal)


class Beginning(io.StringIO):
    """A stream that keeps the beginning of what is written into it."""

    def write(self, text: str) -> int:
        room = KEPT - self.tell()
        if room > 0:
            super().write(text[:room])
        return len(text)


def found(path: str, name: str, parameters: Sequence[str] | None = None) -> Callable[..., Any]:
    """Import a file anew, and return its function `name`. Raises Unfit if none is there, or it has other parameters."""
    file = Path(path)
    wanted = name if parameters is None else f"{name}({', '.join(parameters)})"
    if not file.is_file():
        raise Unfit(f"there is no file {file.name}; `mha learn start` writes it")
    if not file.read_bytes().strip():
        raise Unfit(f"the file is empty; it must define {wanted}")
    spec = importlib.util.spec_from_file_location(f"_learner_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # at its end: nothing of the same name is to be hidden
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the folder is the learner's
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        raise Unfit(f"importing it raised {one_line(error)}{place(error, path)}") from error
    finally:
        sys.dont_write_bytecode = bytecode
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        raise Unfit(f"it has no function {wanted}")
    if parameters is not None:
        _check_parameters(function, wanted, len(parameters))
    return function


def _check_parameters(function: Callable[..., Any], wanted: str, count: int) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # made by a framework: the call will tell
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise Unfit(f"its parameters are {signature}; it must be {wanted}") from error


def called(function: Callable[..., Any], arguments: Sequence[Any], path: str) -> Any:
    """Call a learner's function, and return the result. Raises NotBegun, or Unfit with the error and its line."""
    try:
        with np.errstate(all="ignore"):  # NaN and infinity are data here, and no reason to warn
            return function(*arguments)
    except NotImplementedError as error:
        raise NotBegun from error
    except BaseException as error:
        raise Unfit(f"raised {one_line(error)}{place(error, path)}") from error


def place(error: BaseException, path: str) -> str:
    """Return the line of the learner's file that raised an error, as " (line 12)"; "" if it was another file."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f" (line {error.lineno})"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f" (line {lines[-1]})" if lines else ""


def answer_of(
    asked: Asked, function: Callable[..., Any], arguments: tuple[Any, ...], shapes: tuple[tuple[int, ...], ...]
) -> Arrays:
    """Return the arrays that one call returns. NotBegun or Unfit if it returns none. `shapes`: their right shapes."""
    named = dict(zip(asked.parameters, arguments, strict=True))
    handout = Handout({name: value for name, value in named.items() if isinstance(value, np.ndarray)})
    handed = [given(asked.dialect, handout.copies.get(name, value)) for name, value in named.items()]
    try:
        returned = called(function, handed, asked.path)
    except Unfit as error:
        none = [name for name, value in named.items() if value is None]
        if none and "NoneType" in str(error):
            raise Unfit(f"{error}: {' and '.join(none)} may be None, and is here") from error
        raise
    if returned is None:
        raise Unfit(f"{asked.function} returned nothing (None)")
    parts = (returned,) if len(asked.returns) == 1 else returned
    if not isinstance(parts, (tuple, list)) or len(parts) != len(asked.returns):
        raise Unfit(f"it must return {len(asked.returns)} arrays, ({', '.join(asked.returns)})")
    made = []
    for name, value, shape in zip(asked.returns, parts, shapes, strict=True):
        if asked.dialect != NUMPY and isinstance(value, np.ndarray):
            raise Unfit(f"{name} is a NumPy array; it must be one of {asked.dialect}, as what was given")
        array = as_array(name, taken(asked.dialect, value), shape)
        if array.dtype.kind not in "fbiu":
            raise Unfit(f"{name} is of dtype {shown(array.dtype)}, which holds no real numbers")
        made.append(array)
    if handout.changed():
        raise Unfit(f"it wrote into its arguments: {', '.join(handout.changed())}")
    return tuple(made)
