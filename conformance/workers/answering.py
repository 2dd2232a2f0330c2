"""Runs in the process of a framework or a subject, and gives answers; nothing is judged there.

A framework or a subject may change NumPy for its whole process. So the reference, its bounds and every comparison
are computed in other processes; this one gives arrays.
"""

import gc
from collections import OrderedDict
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.subjects.answers import of_other_dtype
from conformance.subjects.ask import CannotExpress, Session, SubjectFailed, Turn, within
from conformance.subjects.backend import BackendSubject
from conformance.subjects.load import LoadedSubject, load_subject, load_subjects
from conformance.subjects.quiet import quiet_stderr
from conformance.workers import wire
from conformance.workers.protocol import Frame
from mha_core import AttentionConfig, AttentionInputs
from mha_core.backend import Backend, load, use_compile_cache
from mha_core.errors import ErrorElsewhere, one_line
from mha_core.files.kept import kept_folder
from mha_core.weights import Weights

Source = tuple[Any, ...]
"""The name of a function here, module:name, and its arguments: it returns a subject."""

PREPARED = 8
"""How many prepared layers are kept."""

LOOKS = 10_000
"""New objects between two looks for cycles: a fourteenth of the looks that Python takes by itself."""

_sessions: OrderedDict[str, Session] = OrderedDict()
"""Name of a prepared layer -> what asks it; the last few."""


def answered(request: bytes) -> tuple[bytes, bytes]:
    """Call the function that a request names; return (Frame.ANSWER, result) or (Frame.RAISED, error), as bytes."""
    try:
        name, _, given = request.partition(b"\0")
        function = _named(name.decode())  # its module knows what else may be sent to it
        return Frame.ANSWER, wire.dumps(function(*wire.loads(given, layouts=True)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # what a framework or a subject raises belongs to who asked
        try:
            return Frame.RAISED, wire.dumps(error)
        except TypeError:
            return Frame.RAISED, wire.dumps(ErrorElsewhere(one_line(error)))


def _named(name: str) -> Any:
    module, _, function = name.partition(":")
    return attrgetter(function)(import_module(module))


@wire.sendable
class NotPrepared(LookupError):
    """An error: this process has not prepared the layer, or no longer has it."""


def answers(
    session: str,
    source: Source,
    layer: tuple[AttentionConfig, Weights] | None,
    calls: list[AttentionInputs],
    limit: float,
) -> wire.Together:
    """Run a layer on calls; return (answers, each a dict name -> array; the error that ended the calls, or None).

    Args:
        session: the name of the prepared layer.
        source: (name, *arguments) of the function that returns the subject (the tested layer).
        layer: the config and weights with which to prepare the layer; None if it is prepared already.
        calls: the inputs of the calls, in this order.
        limit: seconds for each call, if the subject has a time limit.

    Raises:
        NotPrepared: `layer` is None, and no layer is prepared under `session`.
    """
    found = _sessions.pop(session, None)
    if found is None:
        if layer is None:
            raise NotPrepared(session)
        function, *arguments = source
        found = Session(within(_named(function)(*arguments), limit), Problem(*layer, calls[0]))
    _sessions[session] = found
    while len(_sessions) > PREPARED:
        _sessions.popitem(last=False)
    config, weights = found.problem.config, found.problem.weights
    given: list[dict[str, NDArray]] = []
    try:
        for trace in found.answers([Problem(config, weights, inputs) for inputs in calls]):
            arrays = trace.arrays()
            _check_sendable(arrays, found.subject.dtype)
            given.append(arrays)
    except (CannotExpress, SubjectFailed) as error:
        return wire.Together((given, error))
    return wire.Together((given, None))


def turns(source: Source, done: list[Turn], limit: float) -> wire.Together:
    """Return the results of `Session.turns` on newly prepared layers, with name -> array in place of each Trace.

    Args:
        source: (name, *arguments) of the function that returns the subject (the tested layer).
        done: the turns, in this order.
        limit: seconds for each turn, if the subject has a time limit.
    """
    function, *arguments = source
    session = Session(within(_named(function)(*arguments), limit), done[0].problems[0])
    given: list[Any] = []
    for outcome in session.turns(done):
        if isinstance(outcome, Exception):
            given.append(outcome)
            continue
        given.append([trace.arrays() for trace in outcome])
        try:
            for arrays in given[-1]:
                _check_sendable(arrays, session.subject.dtype)
        except SubjectFailed as error:
            given[-1] = error
    return wire.Together(given)


def _check_sendable(arrays: dict[str, NDArray], dtype: str) -> None:
    for name, array in arrays.items():
        if not wire.is_sendable(array):
            raise SubjectFailed(of_other_dtype(name, array, dtype))


@cache
def _backend(name: str, folder: Path | None) -> Backend:
    """The backend, which keeps its programs in this folder."""
    found = _loaded(name)
    use_compile_cache(found)
    return found


def _loaded(name: str) -> Backend:
    """The backend. Python looks for cycles less often from now on, and not among what its framework has made."""
    gc.disable()
    try:
        with quiet_stderr():
            return load(name)
    finally:
        gc.freeze()
        gc.set_threshold(LOOKS)
        gc.enable()


def backend_subject(name: str, dtype: str, device: str, path: str | None) -> BackendSubject:
    """Return a backend as a subject."""
    return BackendSubject(_backend(name, kept_folder()), dtype, device, path)


@cache
def own_subject(spec: str, dtype: str, limit: float) -> LoadedSubject:
    """Return a user's own subject."""
    return load_subject(spec, dtype, time_limit=limit)


# What they are ---------------------------------------------------------------------------------------------


def described_backend(name: str) -> dict[str, Any]:
    """Return the fields of a `conformance.workers.described.DescribedBackend` for a backend."""
    import platform
    import sys

    found = _loaded(name)
    with quiet_stderr():
        devices = found.devices()
    return {
        "name": found.name,
        "slow_to_prepare": found.slow_to_prepare,
        "relative_cost": found.relative_cost,
        "interpreter": sys.executable,
        "python": platform.python_version(),
        # PyTorch's is an object of its own, which could only be read with PyTorch.
        "_versions": {package: str(version) for package, version in found.versions().items()},
        "_dtypes": {device: found.dtypes(device) for device in devices},
        "_paths": found.paths(),
        "_default_paths": found.default_paths(),
        "_kernels": {
            (device, path): found.softmax_kernel(device, path) for device in devices for path in found.paths()
        },
    }


def described_subject(spec: str, dtype: str, limit: float) -> dict[str, Any]:
    """Return the fields of a `conformance.workers.described.RemoteSubject` for a user's own subject."""
    return _described(load_subject(spec, dtype, time_limit=limit))


def described_subjects(spec: str, dtypes: tuple[str, ...], limit: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Return `described_subject` for each of `dtypes` that the subject computes in, and a line for each other dtype."""
    found, left_out = load_subjects(spec, dtypes, time_limit=limit)
    return [_described(subject) for subject in found], left_out


def _described(subject: LoadedSubject) -> dict[str, Any]:
    names = ("spec", "name", "dtype", "device", "precision", "selector", "origin", "undeclared", "says_compiled")
    return {**{name: getattr(subject, name) for name in names}, "limit": subject.time_limit}
