"""Stand-ins for backends and subjects that live in other processes.

A stand-in has the facts that its process reported (name, dtypes, paths), and has everything computed there. Where a
backend or a subject is expected, it will do, and no framework is imported. Answers are checked when they arrive.
"""

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.subjects.answers import CannotExpress, SubjectFailed, shapes_of
from conformance.subjects.ask import Turn
from conformance.subjects.backend import BackendSubject
from conformance.subjects.load import check_time_limit
from conformance.subjects.subject import Subject
from conformance.workers import answering, wire
from conformance.workers.answering import NotPrepared, Source
from conformance.workers.execute import Strangers
from conformance.workers.interpreters import NUMPY, Home, Settings, same_program
from conformance.workers.process import GRACE_SECONDS
from conformance.workers.protocol import Frame, Line, TooLong, WorkerDied
from mha_core import AttentionConfig, AttentionInputs, BackendError, SpecError, Trace
from mha_core.backend import Backend, Run, SoftmaxKernel
from mha_core.errors import ErrorElsewhere
from mha_core.weights import Weights

Kind = TypeVar("Kind")

BACKEND_SECONDS = 300.0
"""Seconds that one answer of a backend may take."""

_line: Line | None = None
"""In a process of ours that was started by another: the way to all others."""


def use_line(line: Line) -> None:
    """Set the Line (the way to other processes) by which all requests are sent from now on."""
    global _line
    _line = line


@dataclass(frozen=True)
class Elsewhere:
    """A worker process that is kept alive between requests. `home`: what runs in it, such as "torch"."""

    home: Home
    settings: Settings

    def asked(self, seconds: float | None, kind: type[Kind], function: Callable[..., Any], *given: Any) -> Kind:
        """Call a function in the worker process; return its result, or raise its error.

        Args:
            seconds: the time that the call may take. None: no limit, as long as the process gives signs of life.
            kind: the type of the answer.
            function, given: a module-level function, and its arguments.

        Raises:
            CannotStart: the process can't be started.
            WorkerDied: it ended, or had to be ended, or sent something else than an answer of this type.
        """
        request = request_of(function, *given)
        if _line is not None:
            return self.read(_line.ask(self.home, seconds, request), kind)
        with Strangers(self.settings) as strangers:
            return self.read(strangers.ask(self.home, seconds, request), kind)

    def read(self, answer: tuple[bytes, bytes], kind: type[Kind]) -> Kind:
        """Return the value in an answer (frame kind, content) of the process. Raises what `asked` raises."""
        word, content = answer
        try:
            value = wire.loads(content)
            if isinstance(value, Exception if word == Frame.RAISED else kind):
                if isinstance(value, Exception):
                    raise value
                return value
            reason = f"a {type(value).__name__}"
        except wire.Unreadable as error:
            reason = str(error)
        interpreter = self.settings.interpreter(self.home)
        which = "" if interpreter is None else f" (the interpreter {interpreter})"
        raise WorkerDied(f"the process of {self.home.name}{which} sent what is no answer: {reason}")


def request_of(function: Callable[..., Any], *given: Any) -> bytes:
    """Return the request, as bytes, to call a module-level function with these arguments."""
    return f"{function.__module__}:{function.__qualname__}\0".encode() + wire.dumps(list(given))


_numbers = itertools.count()


class RemoteSession:
    """A prepared layer in another process; for a layer in this process see `conformance.subjects.ask.Session`.

    Args:
        process: the process in which the layer is prepared.
        source: (name, *arguments) of the function that returns the subject (the tested layer) in that process.
        problem: a problem with the layer's config and weights.
        limit: seconds that one answer may take.
    """

    def __init__(self, process: Elsewhere, source: Source, problem: Problem, limit: float) -> None:
        self._process, self._source, self._limit = process, source, limit
        self._layer = problem.config, problem.weights
        self._name = f"{os.getpid()}.{next(_numbers)}"
        self._is_prepared = False

    def answers(self, problems: Sequence[Problem]) -> Iterator[Trace]:
        """Yield the layer's answers to the inputs of these problems; raises as `conformance.subjects.ask.ask`."""
        try:
            given, error = self._asked([problem.inputs for problem in problems])
        except WorkerDied as death:
            raise SubjectFailed(str(death)) from death
        for arrays, problem in zip(given, problems, strict=False):
            yield _trace(arrays, problem)
        if error is not None or len(given) < len(problems):
            raise error if isinstance(error, Exception) else SubjectFailed("its process sent too few answers")

    def turns(self, turns: Sequence[Turn]) -> Iterator[list[Trace] | CannotExpress | SubjectFailed]:
        """Yield what `conformance.subjects.ask.Session.turns` yields, from layers newly prepared in the process."""
        seconds = sum(max(1, turn.times * len(turn.problems)) for turn in turns) * self._limit + GRACE_SECONDS
        arguments = (self._source, list(turns), self._limit)
        try:
            found = self._process.asked(seconds, list, answering.turns, *arguments)
        except WorkerDied as death:
            yield SubjectFailed(f"in one of these {len(turns)} calls, {death}")
            return
        answered: list[Problem] = []
        for turn, outcome in zip(turns, found, strict=False):
            if isinstance(outcome, (CannotExpress, SubjectFailed)):
                yield outcome
                continue
            problems = [problem for problem in turn.problems for _ in range(turn.times)] or answered
            answered += problems if turn.problems and not turn.spoil else []
            if not isinstance(outcome, list) or len(outcome) != len(problems):
                yield SubjectFailed("its process sent what is no answer")
                return
            yield [_trace(arrays, problem) for arrays, problem in zip(outcome, problems, strict=True)]

    def _asked(self, calls: list[AttentionInputs]) -> Any:
        # The limit holds there; what is added is for a process that can't keep it.
        seconds = len(calls) * self._limit + GRACE_SECONDS
        arguments = (seconds, tuple, answering.answers, self._name, self._source)
        if self._is_prepared:
            try:
                return self._process.asked(*arguments, None, calls, self._limit)
            except NotPrepared:
                self._is_prepared = False
        found = self._process.asked(*arguments, self._layer, calls, self._limit)
        self._is_prepared = True
        return found


def _asking(opened: Callable[[Problem], RemoteSession], config: AttentionConfig, weights: Weights) -> Run:
    """A function that asks a layer in another process, which `opened` prepares at the first call."""
    sessions: list[RemoteSession] = []

    def run(inputs: AttentionInputs) -> Trace:
        problem = Problem(config, weights, inputs)
        if not sessions:
            sessions.append(opened(problem))
        return next(sessions[0].answers([problem]))

    return run


def _trace(arrays: Any, problem: Problem) -> Trace:
    """The Trace of arrays that a process sent; SubjectFailed if they are none."""
    known = shapes_of(problem.config, problem.weights, problem.inputs, problem.sizes)
    if not isinstance(arrays, dict) or not all(
        name in known and isinstance(array, np.ndarray) for name, array in arrays.items()
    ):
        raise SubjectFailed("its process sent what is no answer")
    return Trace.of_arrays(arrays)


@dataclass(frozen=True, eq=False, kw_only=True)
class DescribedBackend(Backend):
    """A stand-in for a backend: all computations are done in another process.

    Attributes:
        name, slow_to_prepare, relative_cost: as of a `Backend`.
        interpreter, python: the path of the Python that runs it, and its version.
        settings: what its process is started with.
    """

    name: str
    slow_to_prepare: bool
    relative_cost: float
    interpreter: str
    python: str
    _versions: dict[str, str]
    _dtypes: dict[str, tuple[str, ...]]
    _paths: tuple[str, ...]
    _default_paths: tuple[str, ...]
    _kernels: dict[tuple[str, str], SoftmaxKernel]
    settings: Settings = field(default_factory=Settings)

    @property
    def home(self) -> Home:
        return Home(self.name)

    def versions(self) -> dict[str, str]:
        """Return package -> version; Python is included if another interpreter runs the backend."""
        here = {} if same_program(self.interpreter) else {"python": self.python}
        return {**self._versions, **here}

    def devices(self) -> tuple[str, ...]:
        return tuple(self._dtypes)

    def dtypes(self, device: str) -> tuple[str, ...]:
        return self._dtypes[device]

    def paths(self) -> tuple[str, ...]:
        return self._paths

    def default_paths(self) -> tuple[str, ...]:
        return self._default_paths

    def softmax_kernel(self, device: str, path: str) -> SoftmaxKernel:
        return self._kernels[device, path]

    def session(self, problem: Problem, dtype: str, device: str, path: str | None) -> RemoteSession:
        """Return a session for the problem's layer, which the backend's process prepares at the first call."""
        source = ("conformance.workers.answering:backend_subject", self.name, dtype, device, path)
        return RemoteSession(Elsewhere(self.home, self.settings), source, problem, BACKEND_SECONDS)

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str, path: str) -> Run:
        asking = _asking(lambda problem: self.session(problem, dtype, device, path), config, weights)

        def run(inputs: AttentionInputs) -> Trace:
            try:
                return asking(inputs)
            except SubjectFailed as error:
                raise ErrorElsewhere(str(error)) from error

        return run


def describe_backend(name: str, settings: Settings) -> DescribedBackend:
    """Start a process for a backend, and return a stand-in, which has that process do all computations.

    Raises:
        CannotStart: the backend's interpreter can't be used.
        BackendError: as `mha_core.backend.load`, or the started process died.
    """
    try:
        said = Elsewhere(Home(name), settings).asked(settings.import_limit, dict, answering.described_backend, name)
        return DescribedBackend(**said, settings=settings)
    except WorkerDied as death:
        raise BackendError(f"backend {name!r} can't be used: {_while_imported(death, settings)}") from death


@dataclass(frozen=True)
class RemoteSubject:
    """A user's subject in one dtype, in a process of its own, from where it can't harm the calling process.

    Attributes:
        spec, name, dtype, device, precision, selector, origin, undeclared, says_compiled: as of a `LoadedSubject`.
        limit: seconds that one answer may take in its process.
        patience: seconds that the caller waits for one answer. The smaller of `limit` and `patience` applies.
        settings: what its process is started with.
        source: (name, *arguments) of the function that returns the subject in that process. Default: it loads `spec`.
        place: the name of its process. Default: the spec.
    """

    spec: str
    name: str
    dtype: str
    device: str
    precision: Precision
    selector: str
    origin: str
    limit: float
    undeclared: bool = False
    says_compiled: bool = False
    slow_to_prepare: bool = False
    patience: float = math.inf
    settings: Settings = field(default_factory=Settings)
    source: Source = ()
    place: str = ""
    own: ClassVar[bool] = True

    @property
    def home(self) -> Home:
        return Home(self.place) if self.place else Home(self.spec, self.limit)

    def within(self, seconds: float) -> Self:
        """Return the same subject, in the same process, with a shorter time limit."""
        return replace(self, patience=seconds)

    def elsewhere(self, problem: Problem) -> RemoteSession:
        """Return a session for the problem's layer, which the subject's process prepares at the first call."""
        source = self.source or ("conformance.workers.answering:own_subject", self.spec, self.dtype, self.limit)
        process = Elsewhere(self.home, self.settings)
        return RemoteSession(process, source, problem, min(self.limit, self.patience))

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        """Return a function that runs the layer in the subject's process, which prepares it at the first call."""
        return _asking(self.elsewhere, config, weights)


def describe_subjects(
    spec: str, dtypes: Sequence[str], time_limit: float, settings: Settings
) -> tuple[list[RemoteSubject], list[str]]:
    """Return a user's subject in each of `dtypes` that it computes in, and a line for each other dtype.

    The subject's module is imported in another process.

    Raises:
        SpecError: as `conformance.subjects.load.load_subjects`; or the process can't be started or died.
    """
    with _importing(spec, time_limit, settings) as process:
        function = answering.described_subjects
        found, left_out = process.asked(settings.import_limit, tuple, function, spec, tuple(dtypes), time_limit)
    return [RemoteSubject(**said, settings=settings) for said in found], left_out


def describe_subject(spec: str, dtype: str, time_limit: float, settings: Settings) -> RemoteSubject:
    """Return a user's subject in one dtype, as `describe_subjects` does; raise OtherDtype if it lacks the dtype."""
    with _importing(spec, time_limit, settings) as process:
        said = process.asked(settings.import_limit, dict, answering.described_subject, spec, dtype, time_limit)
    return RemoteSubject(**said, settings=settings)


@contextmanager
def _importing(spec: str, time_limit: float, settings: Settings) -> Iterator[Elsewhere]:
    home = Home(spec, check_time_limit(time_limit))
    try:
        yield Elsewhere(home, settings)
    except WorkerDied as death:
        raise SpecError(f"subject {spec!r}: {_while_imported(death, settings)}") from death


def _while_imported(death: WorkerDied, settings: Settings) -> str:
    """How a process died in which something was imported, in words."""
    limit = f" (--import-limit {settings.import_limit:g})" if isinstance(death, TooLong) else ""
    return f"while it was imported, {death}{limit}"


def home_of(subject: Subject) -> Home:
    """Return the home of the process that a subject runs in."""
    if isinstance(subject, BackendSubject):
        return Home(subject.backend.name)
    return subject.home if isinstance(subject, RemoteSubject) else Home(NUMPY)


def relative_cost(subject: Subject) -> float:
    """Return about how long a case takes on a subject, in arbitrary units."""
    return float(getattr(subject, "relative_cost", 1.0))
