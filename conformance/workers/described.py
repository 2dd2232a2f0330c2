"""Backends and subjects that live in worker processes, as this process knows them.

What they are is known by what they say of themselves; what they compute is asked there. So whatever takes a backend
or a subject takes these, and needs no framework in its own process.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.subjects.ask import Session, SubjectFailed
from conformance.subjects.backend import BackendSubject
from conformance.subjects.load import LoadedSubject, check_time_limit, load_subject, load_subjects
from conformance.subjects.quiet import quiet_stderr
from conformance.subjects.subject import Subject
from conformance.workers.interpreters import NUMPY, Home, Settings, same_program
from conformance.workers.keep import give_back, take
from conformance.workers.process import GRACE_SECONDS, WorkerDied
from mha_core import AttentionConfig, AttentionInputs, BackendError, SpecError, Trace
from mha_core.backend import Backend, Run, SoftmaxKernel, load, use_compile_cache
from mha_core.weights import Weights


@dataclass(frozen=True, eq=False, kw_only=True)
class DescribedBackend(Backend):
    """A backend in another process, which is asked there.

    Attributes:
        name, slow_to_prepare, relative_cost: as of a `Backend`.
        interpreter, python: the program that runs it, and its version.
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
        """As of a `Backend`, and Python's where another interpreter runs it."""
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

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str, path: str) -> Run:
        number = next(_numbers)

        def run(inputs: AttentionInputs) -> Trace:
            arguments = (number, self.name, config, weights, dtype, device, path, inputs)
            try:
                return _called(self.home, self.settings, None, _run, *arguments)
            except WorkerDied as death:
                raise BackendError(str(death)) from death

        return run


def describe_backend(name: str, settings: Settings) -> DescribedBackend:
    """What a backend says of itself, asked in a process of its own, which is kept for work.

    Raises:
        CannotStart: its interpreter can't be used.
        BackendError: as `mha_core.backend.load`, or its process died.
    """
    try:
        described: DescribedBackend = _called(Home(name), settings, None, _describe, name)
    except WorkerDied as death:
        raise BackendError(f"backend {name!r} can't be used: while it was imported, {death}") from death
    return replace(described, settings=settings)


def _describe(name: str) -> DescribedBackend:
    """In the worker."""
    import platform
    import sys

    with quiet_stderr():
        backend = load(name)
        devices = backend.devices()
    return DescribedBackend(
        name=backend.name,
        slow_to_prepare=backend.slow_to_prepare,
        relative_cost=backend.relative_cost,
        interpreter=sys.executable,
        python=platform.python_version(),
        # PyTorch's is an object of its own, which could only be read with PyTorch.
        _versions={package: str(version) for package, version in backend.versions().items()},
        _dtypes={device: backend.dtypes(device) for device in devices},
        _paths=backend.paths(),
        _default_paths=backend.default_paths(),
        _kernels={
            (device, path): backend.softmax_kernel(device, path) for device in devices for path in backend.paths()
        },
    )


@dataclass(frozen=True)
class RemoteSubject:
    """A user's subject in one dtype, in a process of its own: whatever it does there, it can't harm this one.

    Attributes:
        spec, name, dtype, device, precision, selector, origin: as of a `LoadedSubject`.
        limit: seconds that one answer may take.
        patience: fewer seconds, if whoever asks does not wait that long.
        settings: what its process is started with.
    """

    spec: str
    name: str
    dtype: str
    device: str
    precision: Precision
    selector: str
    origin: str
    limit: float
    slow_to_prepare: bool = False
    patience: float = math.inf
    settings: Settings = field(default_factory=Settings)

    @property
    def home(self) -> Home:
        return Home(self.spec, self.limit)

    def within(self, seconds: float) -> RemoteSubject:
        """The same, in the same process, with a shorter time limit."""
        return replace(self, patience=seconds)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        """A function that asks the subject; it is prepared there at the first call."""
        number = next(_numbers)

        def run(inputs: AttentionInputs) -> Trace:
            problem = Problem(config, weights, inputs)
            # The limit holds there; what is added is for a process that can't keep it.
            seconds = min(self.limit, self.patience) + GRACE_SECONDS
            try:
                return _called(self.home, self.settings, seconds, _ask, number, self, problem)
            except WorkerDied as death:
                raise SubjectFailed(str(death)) from death

        return run


_numbers = itertools.count()
"""Of layers that were prepared from here."""


def _called(
    home: Home, settings: Settings, seconds: float | None, function: Callable[..., Any], *arguments: Any
) -> Any:
    """Call a function in a process of `home`, which is kept; raises what it raises, or WorkerDied."""
    process = take(home, settings)
    try:
        answer = process.call(function, *arguments, seconds=seconds)
    except WorkerDied:
        raise
    except Exception:  # raised there, and sent
        give_back(process)
        raise
    except BaseException:  # an interrupt: its answer is still to come
        process.end()
        raise
    give_back(process)
    return answer


PREPARED = 8
"""How many prepared layers a worker keeps."""

_prepared: OrderedDict[int, Any] = OrderedDict()
"""In the worker: number of a prepared layer -> what runs it; the last few."""


def _kept(number: int, make: Callable[[], Any]) -> Any:
    """In the worker: what was made for this number, or is made now."""
    found = _prepared.pop(number, None) or make()
    _prepared[number] = found
    while len(_prepared) > PREPARED:
        _prepared.popitem(last=False)
    return found


def _ask(number: int, subject: RemoteSubject, problem: Problem) -> Trace:
    """In the worker."""
    session: Session = _kept(number, lambda: Session(live(subject).within(subject.patience), problem))
    return session.answer(problem)


def _run(
    number: int,
    name: str,
    config: AttentionConfig,
    weights: Weights,
    dtype: str,
    device: str,
    path: str,
    inputs: AttentionInputs,
) -> Trace:
    """In the worker."""
    run: Run = _kept(number, lambda: loaded(name).build(config, weights, dtype, device, path))
    return run(inputs)


def describe_subjects(
    spec: str, dtypes: Sequence[str], time_limit: float, settings: Settings
) -> tuple[list[RemoteSubject], list[str]]:
    """A user's subject in every dtype that it computes in, and a line for each of the others; its module is imported
    in a process of its own.

    Raises:
        SpecError: as `conformance.subjects.load.load_subjects`, or its process can't be started or died.
    """
    found, left_out = _imported(spec, time_limit, settings, _describe_subjects, tuple(dtypes))
    return [replace(subject, settings=settings) for subject in found], left_out


def describe_subject(spec: str, dtype: str, time_limit: float, settings: Settings) -> RemoteSubject:
    """As `describe_subjects`, in one dtype. Raises OtherDtype if it does not compute in it."""
    found: RemoteSubject = _imported(spec, time_limit, settings, _describe_subject, dtype)
    return replace(found, settings=settings)


def _imported(spec: str, time_limit: float, settings: Settings, function: Callable[..., Any], dtype: Any) -> Any:
    try:
        return _called(Home(spec, check_time_limit(time_limit)), settings, None, function, spec, dtype, time_limit)
    except WorkerDied as death:
        raise SpecError(f"subject {spec!r}: while it was imported, {death}") from death


def _describe_subject(spec: str, dtype: str, time_limit: float) -> RemoteSubject:
    """In the worker."""
    return _described(load_subject(spec, dtype, time_limit=time_limit))


def _describe_subjects(spec: str, dtypes: tuple[str, ...], time_limit: float) -> tuple[list[RemoteSubject], list[str]]:
    """In the worker."""
    found, left_out = load_subjects(spec, dtypes, time_limit=time_limit)
    return [_described(subject) for subject in found], left_out


def _described(subject: LoadedSubject) -> RemoteSubject:
    return RemoteSubject(
        spec=subject.spec,
        name=subject.name,
        dtype=subject.dtype,
        device=subject.device,
        precision=subject.precision,
        selector=subject.selector,
        origin=subject.origin,
        limit=subject.time_limit,
    )


def home_of(subject: Subject) -> Home:
    """The process that a subject runs in."""
    if isinstance(subject, BackendSubject):
        return Home(subject.backend.name)
    return subject.home if isinstance(subject, RemoteSubject) else Home(NUMPY)


def relative_cost(subject: Subject) -> float:
    """About how long a case takes on a subject, in any measure."""
    return float(getattr(subject, "relative_cost", 1.0))


def live(subject: Any) -> Any:
    """The subject itself where it is only described: called in the worker that it runs in."""
    if isinstance(subject, BackendSubject) and isinstance(subject.backend, DescribedBackend):
        return replace(subject, backend=loaded(subject.backend.name))
    if isinstance(subject, RemoteSubject):
        return _own(subject.spec, subject.dtype, subject.limit)
    return subject


@cache
def loaded(name: str) -> Backend:
    """The backend, in the worker that it runs in."""
    with quiet_stderr():
        backend = load(name)
    use_compile_cache(backend)
    return backend


@cache
def _own(spec: str, dtype: str, limit: float) -> LoadedSubject:
    return load_subject(spec, dtype, time_limit=limit)
