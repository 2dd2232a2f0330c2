"""Guard: ask a subject for its answer to one problem, and make one clear line of whatever goes wrong.

The subject gets copies of everything, so that nothing it writes can spoil another run. Somebody's
own code also gets a time limit: it then runs in a thread of its own, which is abandoned if it does
not answer in time.
"""

from __future__ import annotations

import contextvars
import os
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mha_core
from conformance.problem import Problem
from mha_core import STAGES, AttentionConfig, AttentionInputs, Trace
from mha_core.errors import one_line


class CannotExpress(Exception):
    """Raised by a subject that has no way to do what a case asks; the message says what that is."""


class SubjectFailed(RuntimeError):
    """A subject gave no answer that could be compared; the message is one line."""


def ask(subject: Any, problem: Problem) -> Trace:
    """The subject's answer to one problem.

    Args:
        subject: anything with `prepare(config, weights) -> run(inputs) -> Trace`, and optionally
            `supports(config, inputs)`, which gives None or the reason why not. If it has a
            `time_limit` in seconds, all of it runs in a thread that is not the caller's.
        problem: rounded to the subject's dtype.

    Returns:
        A Trace of NumPy arrays of its own, with at least an output. Their shapes, dtypes and
        values are not checked here.

    Raises:
        CannotExpress: the subject says so.
        SubjectFailed: it raised, gave something else than NumPy arrays, wrote into its weights or
            inputs, or did not answer in time.
    """
    limit: float | None = getattr(subject, "time_limit", None)
    weights = Handout(problem.weights)
    arrays = Handout(_input_arrays(problem.inputs))
    inputs = _with_arrays(problem.inputs, arrays.copies)

    def work() -> Any:
        # NaN and infinity are data here, and no reason to warn. NumPy keeps this setting per thread.
        with np.errstate(all="ignore"):
            reason = _why_not(subject, problem.config, inputs)
            if reason is not None:
                raise CannotExpress(reason)
            run = subject.prepare(problem.config, weights.copies)
            if not callable(run):
                raise SubjectFailed(f"prepare returned {_a(run)}; it must return a function run(inputs) -> Trace")
            return run(inputs)

    try:
        answer = work() if limit is None else in_time(work, limit)
    except (CannotExpress, SubjectFailed, KeyboardInterrupt):
        raise
    except BaseException as error:  # a subject may raise anything, even SystemExit; the other cases still run
        if limit is None and not isinstance(error, Exception):
            raise
        where = "" if limit is None else place(error)
        raise SubjectFailed(one_line(error) + where) from error
    written = [
        f"wrote into its {what}: {', '.join(names)}"
        for what, names in (("inputs", arrays.changed()), ("weights", weights.changed()))
        if names
    ]
    if written:
        raise SubjectFailed("; ".join(written))
    return as_trace(answer, problem.weights)


def as_trace(answer: Any, weight_names: Collection[str]) -> Trace:
    """What a subject returned as a Trace of copies: a Trace, a dict by stage, or an output alone.

    Raises SubjectFailed if it is nothing of these, or holds anything but NumPy arrays.

    >>> as_trace(np.ones((1, 2, 3)), ()).output.shape
    (1, 2, 3)
    >>> as_trace({"output": [1.0]}, ())
    Traceback (most recent call last):
    ...
    conformance.guard.SubjectFailed: output is a list, not a NumPy array; convert it: numpy.asarray(output)
    """
    if isinstance(answer, Trace):
        given: dict[str, Any] = {**dict(answer.stages()), "gradients": answer.gradients}
    elif isinstance(answer, Mapping):
        given = dict(answer)
    elif answer is None:
        raise SubjectFailed("returned nothing (None); it must return its output")
    elif isinstance(answer, (tuple, list)):
        raise SubjectFailed(
            f"returned {_a(answer)}; it must return its output alone, "
            "or a dict by stage, such as {'output': ..., 'weights': ...}"
        )
    else:
        given = {"output": answer}
    gradients = given.pop("gradients", None)
    _check_names("its answer", given, STAGES)
    stages = {name: as_array(name, value) for name, value in given.items() if value is not None}
    if "output" not in stages:
        raise SubjectFailed("gave no output; it may leave out every other stage, but not that one")
    return Trace(**stages, gradients=_as_gradients(gradients, weight_names))


def _as_gradients(gradients: Any, weight_names: Collection[str]) -> dict[str, NDArray] | None:
    if gradients is None:
        return None
    if not isinstance(gradients, Mapping):
        raise SubjectFailed(f"gradients is {_a(gradients)}; it must be a dict by name")
    _check_names("gradients", gradients, (*GRADIENTS_OF_INPUTS, *weight_names))
    # None is what frameworks say of an input that nothing depends on: the comparison calls it missing.
    return {name: as_array(f"gradients.{name}", value) for name, value in gradients.items() if value is not None}


def _check_names(what: str, given: Mapping[Any, Any], known: Collection[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise SubjectFailed(f"{what} holds {unknown[0]!r}, which is not known (known: {', '.join(known)})")


CONVERSIONS = {
    "torch": "{}.detach().cpu().numpy()",
    "tensorflow": "{}.numpy()",
    "mxnet": "{}.asnumpy()",
}
"""Package -> how its arrays become NumPy arrays, where it is not numpy.asarray()."""


def as_array(name: str, value: Any) -> NDArray:
    """A copy of a NumPy array; SubjectFailed for anything else, with the conversion that is missing."""
    if isinstance(value, np.ndarray):
        return np.array(value)
    package = type(value).__module__.split(".")[0]
    device = getattr(value, "device", None) or getattr(value, "ctx", None)
    where = "" if device is None else f" on {device}"
    conversion = CONVERSIONS.get(package, "numpy.asarray({})").format(name)
    raise SubjectFailed(f"{name} is {_a(value)}{where}, not a NumPy array; convert it: {conversion}")


def _a(value: Any) -> str:
    """Type and article: "a list", "a torch.Tensor"."""
    kind = type(value)
    package = "" if kind.__module__ == "builtins" else kind.__module__.split(".")[0] + "."
    name = f"{package}{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}" if value is not None else "None"


def _why_not(subject: Any, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
    supports = getattr(subject, "supports", None)
    if supports is None:
        return None
    reason = supports(config, inputs)
    if reason is not None and not (isinstance(reason, str) and reason):
        raise SubjectFailed(f"supports returned {reason!r}; it must return None, or in words what is not possible")
    return reason


# What is handed out ---------------------------------------------------------------------------------


class Handout:
    """Copies of arrays, to be given away, that can be asked afterwards whether somebody wrote into them.

    >>> handout = Handout({"keys": np.zeros(2), "values": np.zeros(2)})
    >>> handout.copies["values"][0] = 1.0
    >>> handout.changed()
    ['values']
    """

    def __init__(self, originals: Mapping[str, NDArray]) -> None:
        self.originals = originals
        self.copies = {name: copy_in_layout(array) for name, array in originals.items()}

    def changed(self) -> list[str]:
        """The names of the arrays that are not as they were, to the bit."""
        return [name for name, array in self.originals.items() if array.tobytes() != self.copies[name].tobytes()]


def copy_in_layout(array: NDArray) -> NDArray:
    """A writable copy that lies in memory as `array` does: strided, transposed, or expanded by stride 0."""
    if array.size == 0:
        return array.copy()
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    before = -sum(step for step in reach if step < 0)
    after = sum(step for step in reach if step > 0)
    buffer: Any = np.zeros(before + after + array.itemsize, np.uint8)
    copy: NDArray = np.ndarray(array.shape, array.dtype, buffer, before, array.strides)
    copy[...] = array
    return copy


GRADIENTS_OF_INPUTS = ("queries", "keys", "values", "past_keys", "past_values", "bias")
"""What gradients are taken of besides weights."""

OWN_ARRAYS = ("queries", "keys", "values", "dropout_keep", "cotangent", "past_keys", "past_values")
"""The arrays of AttentionInputs; the others are its mask's."""


def _input_arrays(inputs: AttentionInputs) -> dict[str, NDArray]:
    found = {name: getattr(inputs, name) for name in OWN_ARRAYS}
    inputs.mask.map_arrays(lambda name, array: found.setdefault(name, array))
    return {name: np.asarray(array) for name, array in found.items() if array is not None}


def _with_arrays(inputs: AttentionInputs, arrays: Mapping[str, NDArray]) -> AttentionInputs:
    own: dict[str, Any] = {name: arrays.get(name) for name in OWN_ARRAYS}
    return replace(inputs, **own, mask=inputs.mask.map_arrays(lambda name, array: arrays[name]))


# Time ------------------------------------------------------------------------------------------------

Answer = tuple[Any, BaseException | None]
"""What a job gave, or what it raised."""

_idle: list[_Worker] = []
"""Threads that wait for work. One is enough unless subjects ask subjects."""


class _Worker:
    """A daemon thread that does one job after another.

    It is kept from case to case: frameworks hold state and thread pools per thread.
    """

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.answers: SimpleQueue[Answer] = SimpleQueue()
        threading.Thread(target=self._loop, name="mha-subject", daemon=True).start()

    def _loop(self) -> None:
        while (job := self.jobs.get()) is not None:
            try:
                self.answers.put((job(), None))
            except BaseException as error:  # it belongs to whoever waits for the answer
                self.answers.put((None, error))
            del job


def in_time(work: Callable[[], Any], seconds: float) -> Any:
    """What `work()` gives or raises, in another thread; SubjectFailed if that takes more than `seconds`.

    The thread can't be stopped: it is left behind, and ends with the process at the latest.
    """
    worker = _idle.pop() if _idle else _Worker()
    worker.jobs.put(partial(contextvars.copy_context().run, work))
    try:
        answer, error = _wait(worker.answers, seconds)
    except Empty:
        worker.jobs.put(None)
        raise SubjectFailed(f"no answer within {seconds:g} s") from None
    except BaseException:  # an interrupt, while it was busy
        worker.jobs.put(None)
        raise
    _idle.append(worker)
    if error is not None:
        raise error
    return answer


def _wait(answers: SimpleQueue[Answer], seconds: float) -> Answer:
    """The next answer; Empty if there is none in time. In short waits: an interrupt may not end a long one."""
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            return answers.get(timeout=max(0.0, min(left, 0.1)))
        except Empty:
            if left <= 0.1:
                raise


# Where an error comes from -------------------------------------------------------------------------


def place(error: BaseException) -> str:
    """Where in somebody's own code an error comes from: " (mine.py:12 in attention)"; "" if not from there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_other_code())]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name})" if own else ""


@cache
def _other_code() -> tuple[str, ...]:
    """Where Python, installed packages and this project lie."""
    installed = [Path(sysconfig.get_path(key)) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    ours = [Path(__file__).parent, Path(mha_core.__file__).parent]
    folders = [*installed, *(path.resolve() for path in installed), *ours]
    return ("<frozen", *(f"{folder}{os.sep}" for folder in folders))
