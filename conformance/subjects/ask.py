"""Ask a subject for its answer to one problem, and turn any error into one of ours with a message of one line.

The subject gets copies of all arrays, so that writing into them can't spoil another run. A user's own
code also gets a time limit: it then runs in a thread of its own, which is abandoned if it does not
answer in time.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Barrier, BrokenBarrierError
from typing import Any, Literal

import numpy as np

from conformance.cases.problem import Problem
from conformance.subjects.answers import (
    CannotExpress,
    SubjectFailed,
    as_trace,
    kind_of,
    place,
    place_now,
    place_of_write,
    shapes_of,
    words,
)
from conformance.subjects.handout import Handout, input_arrays, with_arrays
from conformance.subjects.in_time import TookTooLong, all_in_time, kept_surroundings
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.errors import listed, one_line
from mha_core.weights import Weights

__all__ = ["CannotExpress", "Session", "SubjectFailed", "Turn", "ask", "place", "within", "words"]


def ask(subject: Any, problem: Problem) -> Trace:
    """Return the subject's answer to one problem.

    Args:
        subject: anything with `prepare(config, weights) -> run(inputs) -> Trace`, and optionally
            `supports(config, inputs)`, which returns None, or why it can't do the call. If it has a
            `time_limit` in seconds, all its code runs in another thread than the caller's.
        problem: a layer and one call, rounded to the subject's dtype.

    Returns:
        A Trace of copied NumPy arrays, with at least an output. Their shapes, dtypes and values are not checked here.

    Raises:
        CannotExpress: the subject's `supports` returned a reason, or the subject raised CannotExpress.
        SubjectFailed: the subject raised another error, returned something else than NumPy arrays, wrote
            into its weights or inputs, or did not answer in time.
    """
    return Session(subject, problem).answer()


def within(subject: Any, seconds: float) -> Any:
    """Return the subject with a time limit of at most `seconds`; unchanged if the subject has no time limit."""
    shorter = getattr(type(subject), "within", None)
    return subject if shorter is None else shorter(subject, seconds)


Shapes = Mapping[str, tuple[int, ...]]
"""Stage, or "gradients.NAME" -> the shape that it must have."""

TOGETHER_SECONDS = 5.0
"""How long a thread waits for the others with which it is to ask."""


@dataclass(frozen=True, eq=False)
class Turn:
    """One step of a session with prepared layers: one or several calls, or a check of the arrays returned earlier.

    Args:
        problems: the inputs of the calls. Several calls run at once, each in a thread of its own. (): instead of
            a call, all arrays that earlier turns returned are copied again, to see whether they have changed.
        layer: the number of the called layer. A layer is prepared at its first turn, for that turn's first problem.
        times: how often each call is made.
        thread: the number, 0 or 1, of the thread that makes a single call.
        same_arrays: whether the layer gets the previous turn's array objects again, with other numbers in them.
        spoil: whether the returned arrays are overwritten after the call, as a caller may do.
        weights: new weights, which the layer gets before the call. None: its weights stay the same.
        how: how the layer gets new weights. "set": by its `set_weights`. "in place": they are written into the arrays
            given to `prepare`. "prepared anew": they are written there too, and `prepare` is called again.
    """

    problems: tuple[Problem, ...] = ()
    layer: int = 0
    times: int = 1
    thread: int = 0
    same_arrays: bool = False
    spoil: bool = False
    weights: Weights | None = None
    how: Literal["set", "in place", "prepared anew"] = "set"


@dataclass(eq=False)
class _Layer:
    """A layer: the copies of its weights that `prepare` is given, and what it returned."""

    problem: Problem
    weights: Handout
    run: Callable[[AttentionInputs], Any] | None = None


class Session:
    """A session with a subject (a tested layer): it is prepared for the layer of `problem`, and called repeatedly.

    All code of the subject runs under its time limit, and its errors become messages of one line; see `ask` for the
    arguments and errors.
    """

    def __init__(self, subject: Any, problem: Problem) -> None:
        self.subject = subject
        self.problem = problem
        opened = getattr(type(subject), "elsewhere", None)
        self._elsewhere = None if opened is None else opened(subject, problem)
        self._layers: dict[int, _Layer] = {}
        self._inputs: list[Handout] = []
        self._returned: list[tuple[Any, _Layer, Shapes]] = []

    def answer(self, problem: Problem | None = None) -> Trace:
        """Return the layer's answer to `problem`. Default: the session's problem. The first call prepares the layer."""
        return next(self.answers([self.problem if problem is None else problem]))

    def answers(self, problems: Sequence[Problem]) -> Iterator[Trace]:
        """Yield the layer's answers to the inputs of these problems, in order, and raise the first error.

        If the subject is in another process, all problems may be sent to it before the first answer is yielded.
        """
        if self._elsewhere is not None:  # a session there does what this one does
            yield from self._elsewhere.answers(problems)
            return
        self._layer(0, self.problem)
        for problem in problems:
            yield self._asked(Turn((problem,)))[0]

    def turns(self, turns: Sequence[Turn]) -> Iterator[list[Trace] | CannotExpress | SubjectFailed]:
        """Yield for each turn, in order, the answers to all its problems, or the error that says why there are none.

        Call it only once, since it prepares the layers. All turns may be sent at once to a subject in another process.
        """
        if self._elsewhere is not None:
            yield from self._elsewhere.turns(turns)
            return
        for turn in turns:
            try:
                yield self._asked(turn, keep=True) if turn.problems else self._looked_at_again()
            except (CannotExpress, SubjectFailed) as error:
                yield error

    def _layer(self, number: int, problem: Problem) -> _Layer:
        if number not in self._layers:
            self._layers[number] = _Layer(problem, Handout(problem.weights))
        return self._layers[number]

    def _asked(self, turn: Turn, *, keep: bool = False) -> list[Trace]:
        layer = self._layer(turn.layer, turn.problems[0])
        if turn.weights is not None:
            self._change_weights(layer, turn.weights, turn.how)
        if layer.run is None and len(turn.problems) > 1:
            self._asked(replace(turn, problems=turn.problems[:1], times=1, weights=None))
        given = [input_arrays(problem.inputs) for problem in turn.problems]
        if turn.same_arrays and len(self._inputs) == len(given):
            for handout, arrays in zip(self._inputs, given, strict=True):
                handout.rewrite(arrays)
        else:
            self._inputs = [Handout(arrays) for arrays in given]
        start = Barrier(len(given))
        works = [
            partial(self._answers, layer, problem, handout, start, times=turn.times, keep=keep)
            for problem, handout in zip(turn.problems, self._inputs, strict=True)
        ]
        done = self._done(works, turn.thread)
        changed = {name: None for handout in self._inputs for name in handout.changed()}
        one = len({id(handout.copies.get(name)) for handout in self._inputs for name in changed}) == 1 < len(changed)
        written = [
            f"wrote into its {what}: {', '.join(names)}{' (one array here)' * (one and names is changed)}"
            for what, names in (("inputs", changed), ("weights", layer.weights.changed()))
            if names
        ]
        if written:
            at = "" if keep else self._done([partial(_place_of_write, layer, turn.problems[0])])[0]
            raise SubjectFailed("; ".join(written) + at)
        answers = [(answer, layer, shapes) for returned, shapes, _ in done for answer in returned]
        if turn.spoil:
            for answer in answers:
                for array in self._as_trace(*answer, copy=False).arrays().values():
                    if array.flags.writeable:
                        array.fill(0.5)
        elif keep:
            self._returned += answers
        return [trace for _, _, traces in done for trace in traces]

    def _answers(
        self, layer: _Layer, problem: Problem, handout: Handout, start: Barrier, *, times: int, keep: bool
    ) -> tuple[list[Any], Shapes, list[Trace]]:
        """Ask one problem so many times, in the thread in which the subject runs: what it returns, and as Traces."""
        inputs = with_arrays(problem.inputs, handout.copies)
        shapes = shapes_of(problem.config, problem.weights, problem.inputs, problem.sizes)
        # NaN and infinity are data here, and no reason to warn. NumPy keeps this setting per thread.
        with np.errstate(all="ignore"):
            if layer.run is None:
                with _names_said(layer.problem.weights):
                    layer.run = self._prepared(layer, inputs)
            elif keep and (reason := _why_not(self.subject, problem.config, inputs)) is not None:
                raise CannotExpress(reason)
            with suppress(BrokenBarrierError):  # another thread has failed, or is late: this one goes on
                start.wait(timeout=TOGETHER_SECONDS)
            with _names_said(layer.problem.weights):
                returned = [layer.run(inputs) for _ in range(times)]
            traces = [self._as_trace(answer, layer, shapes) for answer in returned]
        return returned, shapes, traces

    def _as_trace(self, answer: Any, layer: _Layer, shapes: Shapes, *, copy: bool = True) -> Trace:
        return as_trace(answer, layer.problem.weights, shapes, copy=copy)

    def _done(self, works: Sequence[Callable[[], Any]], thread: int = 0) -> list[Any]:
        """What comes of work on the subject, each in a thread of its own if there are several."""
        limit: float | None = getattr(self.subject, "time_limit", None)
        if limit is None and len(works) == 1 and not thread:
            return [_in_one_line(works[0])]
        others = [] if limit is None else [_nothing] * thread
        with _many_switches(len(works)):
            return _somebodys_own([*others, *works], limit)[len(others) :]

    def _looked_at_again(self) -> list[Trace]:
        def work() -> list[Trace]:
            return [self._as_trace(*answer) for answer in self._returned]

        found: list[Trace] = self._done([work])[0]
        return found

    def _change_weights(self, layer: _Layer, weights: Weights, how: str) -> None:
        if how != "set":
            layer.weights.rewrite(weights)
            layer.run = layer.run if how == "in place" else None
            return
        change = getattr(layer.run, "set_weights", None)
        if change is None:
            raise CannotExpress("a change of weights: what `prepare` returns has no set_weights(weights)")
        layer.weights = Handout(weights)
        self._done([partial(change, dict(layer.weights.copies))])

    def _prepared(self, layer: _Layer, inputs: AttentionInputs) -> Callable[[AttentionInputs], Any]:
        reason = _why_not(self.subject, layer.problem.config, inputs)
        if reason is not None:
            raise CannotExpress(reason)
        # A dict of its own: what is taken out of it is not missed here.
        run = self.subject.prepare(layer.problem.config, dict(layer.weights.copies))
        if not callable(run):
            raise SubjectFailed(f"prepare returned {kind_of(run)}; it must return the function run(inputs)")
        return run


@contextmanager
def _names_said(weights: Weights) -> Iterator[None]:
    """A context in which the error of a key that the weights do not have says their names."""
    try:
        yield
    except KeyError as error:
        if type(error) is not KeyError or [type(key) for key in error.args] != [str] or error.args[0] in weights:
            raise
        names = listed(sorted(weights, key=lambda name: name.endswith(".bias")), 4)
        raise SubjectFailed(f"{one_line(error)}{place(error)}; the weights are {names}") from error


def _place_of_write(layer: _Layer, problem: Problem) -> str:
    """The place where a prepared layer writes into the inputs of a problem, or into its weights."""
    handout = Handout(input_arrays(problem.inputs))
    inputs, run = with_arrays(problem.inputs, handout.copies), layer.run
    arrays = [*handout.copies.values(), *layer.weights.copies.values()]
    return "" if run is None else place_of_write(partial(run, inputs), arrays)


def _nothing() -> None:
    """What a thread does that only has to be there."""


@contextmanager
def _many_switches(threads: int) -> Iterator[None]:
    """With several threads, let Python go from one to another as often as it can: calls of a millisecond overlap."""
    before = sys.getswitchinterval()
    if threads > 1:
        sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _in_one_line(work: Callable[[], Any], *, own: bool = False) -> Any:
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


def _somebodys_own(works: Sequence[Callable[[], Any]], limit: float | None) -> list[Any]:
    """As `_in_one_line`, each in a thread of its own, for a user's own code with a time limit.

    Streams are restored afterwards.
    """
    with kept_surroundings():
        try:
            jobs = [partial(_in_one_line, work, own=limit is not None) for work in works]
            return all_in_time(jobs, threading.TIMEOUT_MAX if limit is None else limit)
        except TookTooLong as error:
            at = place_now(error.threads)
            raise SubjectFailed(
                f"{error}{f': it is at{at}'.replace('(', '').replace(')', '') if at else ''}"
            ) from error


def _why_not(subject: Any, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
    supports = getattr(subject, "supports", None)
    if supports is None:
        return None
    reason = supports(config, inputs)
    if reason is not None and not (isinstance(reason, str) and reason):
        raise SubjectFailed(f"supports returned {reason!r}; it must return None, or in words what is not possible")
    return None if reason is None else "".join((reason, ""))  # a str, and no subclass with methods of its own


def can_be_asked_again(subject: Any) -> bool:
    """Return whether a subject can run further calls. If its attribute `recorded` is true, it only replays answers."""
    return not getattr(subject, "recorded", False)
