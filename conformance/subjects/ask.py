"""Ask a subject for its answer to one problem, and turn any error into one of ours with a message of one line.

The subject gets copies of all arrays, so that writing into them can't spoil another run. A user's own
code also gets a time limit: it then runs in a thread of its own, which is abandoned if it does not
answer in time.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mha_core
from conformance.cases.problem import Problem
from conformance.subjects.handout import Handout, input_arrays, with_arrays
from conformance.subjects.in_time import TookTooLong, in_time
from conformance.subjects.surroundings import kept_surroundings
from mha_core import STAGES, AttentionConfig, AttentionInputs, Trace
from mha_core.call.call import LEAVES
from mha_core.call.sizes import CallSizes
from mha_core.errors import LONGEST_MESSAGE, one_line, shown
from mha_core.stages import GRADIENT, stage_shapes


class CannotExpress(Exception):
    """Raised by a subject that has no way to do what a case asks; the message says what that is."""


class SubjectFailed(RuntimeError):
    """Raised where a subject gave no answer that can be compared; the message is one line."""


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
    return Session(subject, problem).answer()


def within(subject: Any, seconds: float) -> Any:
    """The subject with a shorter time limit; itself if it has none."""
    shorter = getattr(type(subject), "within", None)
    return subject if shorter is None else shorter(subject, seconds)


class Session:
    """A subject prepared for the layer of one problem, which can be asked repeatedly.

    Everything that touches the subject or its answer runs within its time limit, and its errors become messages of
    one line; see `ask` for the arguments and errors.
    """

    def __init__(self, subject: Any, problem: Problem) -> None:
        self.subject = subject
        self.problem = problem
        opened = getattr(type(subject), "elsewhere", None)
        self._elsewhere = None if opened is None else opened(subject, problem)
        self._weights = Handout(problem.weights)
        self._run: Callable[[AttentionInputs], Any] | None = None

    def answer(self, problem: Problem | None = None) -> Trace:
        """The layer's answer to the inputs of `problem` (None: its own). It is prepared at the first call only."""
        return next(self.answers([self.problem if problem is None else problem]))

    def answers(self, problems: Sequence[Problem]) -> Iterator[Trace]:
        """The layer's answers to the inputs of these problems, asked in this order; the first error ends them.

        A subject in another process may be asked all of them before the first answer is given here.
        """
        if self._elsewhere is not None:  # a session there does what this one does
            yield from self._elsewhere.answers(problems)
        else:
            yield from map(self._answer, problems)

    def _answer(self, problem: Problem) -> Trace:
        given = problem.inputs
        limit: float | None = getattr(self.subject, "time_limit", None)
        arrays = Handout(input_arrays(given))
        inputs = with_arrays(given, arrays.copies)
        shapes = shapes_of(problem.config, problem.weights, given, problem.sizes)

        def work() -> Trace:
            # NaN and infinity are data here, and no reason to warn. NumPy keeps this setting per thread.
            with np.errstate(all="ignore"):
                if self._run is None:
                    self._run = self._prepared(inputs)
                return as_trace(self._run(inputs), self.problem.weights, shapes)

        trace = _in_one_line(work) if limit is None else _somebodys_own(work, limit)
        written = [
            f"wrote into its {what}: {', '.join(names)}"
            for what, names in (("inputs", arrays.changed()), ("weights", self._weights.changed()))
            if names
        ]
        if written:
            raise SubjectFailed("; ".join(written))
        return trace

    def _prepared(self, inputs: AttentionInputs) -> Callable[[AttentionInputs], Any]:
        reason = _why_not(self.subject, self.problem.config, inputs)
        if reason is not None:
            raise CannotExpress(reason)
        # A dict of its own: what is taken out of it is not missed here.
        run = self.subject.prepare(self.problem.config, dict(self._weights.copies))
        if not callable(run):
            raise SubjectFailed(f"prepare returned {_a(run)}; it must return a function run(inputs) -> Trace")
        return run


def _in_one_line(work: Callable[[], Trace], *, own: bool = False) -> Trace:
    """Return the result of `work()`, and turn its errors into CannotExpress or SubjectFailed with one line.

    Args:
        work: asks the subject.
        own: whether it is a user's own code, which may raise anything, even SystemExit; other cases still run then.
    """
    try:
        return work()
    except BaseException as error:
        if not own and not isinstance(error, Exception):
            raise
        try:
            plain = _plain(error, own)
        except BaseException:  # even asking an error for its words runs the subject's code
            if not own:
                raise
            plain = SubjectFailed("raised an error that can't say what it is")
        raise plain from error


def _plain(error: BaseException, own: bool) -> CannotExpress | SubjectFailed:
    """The CannotExpress or SubjectFailed for an error of a subject."""
    if isinstance(error, (CannotExpress, SubjectFailed)):
        return (CannotExpress if isinstance(error, CannotExpress) else SubjectFailed)(words(error))
    return SubjectFailed(one_line(error) + (place(error) if own else ""))


def _somebodys_own(work: Callable[[], Trace], limit: float) -> Trace:
    """As `_in_one_line`, for a user's own code: in a thread with a time limit; streams are restored afterwards."""
    with kept_surroundings():
        try:
            trace: Trace = in_time(lambda: _in_one_line(work, own=True), limit)
        except TookTooLong as error:
            raise SubjectFailed(str(error)) from error
        return trace


def shapes_of(
    config: AttentionConfig, weights: Mapping[str, NDArray], inputs: AttentionInputs, sizes: CallSizes
) -> dict[str, tuple[int, ...]]:
    """The shape that every stage and gradient must have, by name; gradients as "gradients.NAME"."""
    return {
        **stage_shapes(config, sizes.batch, sizes.query_len, sizes.key_len),
        **{f"{GRADIENT}{name}": array.shape for name, array in {**inputs.leaves(), **weights}.items()},
    }


def as_trace(answer: Any, weight_names: Collection[str], shapes: Mapping[str, tuple[int, ...]] | None = None) -> Trace:
    """Convert the answer of a subject to a Trace of copies; it may be a Trace, a dict by stage, or an output alone.

    Raises SubjectFailed for any other answer, for anything but NumPy arrays in it, and, if the expected `shapes`
    are given, for an array of another shape that is too large to be copied.

    >>> as_trace(np.ones((1, 2, 3)), ()).output.shape
    (1, 2, 3)
    >>> as_trace({"output": [1.0]}, ())
    Traceback (most recent call last):
    ...
    conformance.subjects.ask.SubjectFailed: output is a list, not a NumPy array; convert it: numpy.asarray(output)
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
    given = _by_known_name("its answer", given, STAGES)
    shapes = shapes or {}
    stages = {name: as_array(name, value, shapes.get(name)) for name, value in given.items() if value is not None}
    if "output" not in stages:
        raise SubjectFailed("gave no output; it may leave out every other stage, but not that one")
    return Trace(**stages, gradients=_as_gradients(gradients, weight_names, shapes))


def _as_gradients(
    gradients: Any, weight_names: Collection[str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray] | None:
    if gradients is None:
        return None
    if not isinstance(gradients, Mapping):
        raise SubjectFailed(f"gradients is {_a(gradients)}; it must be a dict by name")
    gradients = _by_known_name("gradients", gradients, (*LEAVES, *weight_names))
    # None is what frameworks say of an input that nothing depends on: the comparison calls it missing.
    named = {name: (f"{GRADIENT}{name}", value) for name, value in gradients.items() if value is not None}
    return {name: as_array(full, value, shapes.get(full)) for name, (full, value) in named.items()}


def _by_known_name(what: str, given: Mapping[Any, Any], known: Collection[str]) -> dict[str, Any]:
    """The dict with our own strings as keys: looking up a key of a subject's own class would run the subject's code."""
    found = {}
    for name, value in given.items():
        plain = "".join((name, "")) if isinstance(name, str) else ""
        if plain not in known or plain in found:
            raise SubjectFailed(f"{what} holds {name!r}, which is not known (known: {', '.join(known)})")
        found[plain] = value
    return found


CONVERSIONS = {
    ("detach", "cpu", "numpy"): "{}.detach().cpu().numpy()",
    ("asnumpy",): "{}.asnumpy()",
    ("numpy",): "{}.numpy()",
}
"""Methods that an array's class has, all of them -> how it becomes a NumPy array. Any other: numpy.asarray()."""

MOST_BYTES = 2**28
"""Most bytes of an array of a wrong shape. It is copied for the report, and strides of 0 can make it any size."""


def as_array(name: str, value: Any, shape: tuple[int, ...] | None = None) -> NDArray:
    """A copy of a NumPy array; SubjectFailed for anything else, with the conversion that is missing.

    Also for an array of more than MOST_BYTES that does not have the `shape` that it must have.
    """
    if isinstance(value, np.ndarray):
        if shape is not None and value.shape != shape and value.nbytes > MOST_BYTES:
            raise SubjectFailed(
                f"{name} has shape {value.shape}, which takes {value.nbytes / 1e9:.3g} GB; it must be {shape}"
            )
        return np.array(value)
    device = getattr(value, "device", None) or getattr(value, "ctx", None)
    where = "" if device is None else f" on {device}"
    raise SubjectFailed(
        f"{name} is {_a(value)}{where}, not a NumPy array; convert it: {_conversion(value).format(name)}"
    )


def _conversion(value: Any) -> str:
    """How a framework's array becomes one of NumPy, told by the methods of its class: no list of frameworks."""
    there = {name for cls in type(value).__mro__ for name in vars(cls)}  # and none of the subject's code is run
    return next((how for methods, how in CONVERSIONS.items() if there.issuperset(methods)), "numpy.asarray({})")


def _a(value: Any) -> str:
    """The type of a value with its article, such as "a list" or "a torch.Tensor"."""
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
    return None if reason is None else "".join((reason, ""))  # a str, and no subclass with methods of its own


# What an error says, and where it comes from -----------------------------------------------------------


def words(error: BaseException) -> str:
    """The first line of an error's message; "" if it is empty, or if its __str__ raises."""
    try:
        return shown(next(iter(str(error).strip().splitlines()), ""), LONGEST_MESSAGE)
    except Exception:  # its own __str__, which may raise anything
        return ""


def place(error: BaseException) -> str:
    """The place of an error in the user's own code, such as " (mine.py:12 in attention)"; "" if it is elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_other_code())]
    if not own:
        return ""
    return f" ({shown(Path(own[-1].filename).name)}:{own[-1].lineno} in {shown(own[-1].name)})"


@cache
def _other_code() -> tuple[str, ...]:
    """The folders of Python, of installed packages and of this project."""
    installed = [Path(sysconfig.get_path(key)) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    ours = [Path(__file__).parents[1], Path(mha_core.__file__).parent]
    folders = [*installed, *(path.resolve() for path in installed), *ours]
    return ("<frozen", *(f"{folder}{os.sep}" for folder in folders))
