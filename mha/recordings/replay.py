"""Replay: compare a recording, and any backend or subject, with the reference on the recorded calls.

The recorded outputs and the outputs that are computed here are each compared with the reference, under the bound
of their own dtype. If both are equal to it, they differ by at most the sum of the two bounds, wherever and whenever
the recording was made: so two frameworks can be compared that can't be installed together.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.judging.distance import worst
from conformance.judging.expected import expected
from conformance.judging.result import Result
from conformance.runner import run_case
from conformance.subjects.ask import CannotExpress, as_trace
from conformance.subjects.handout import input_arrays
from conformance.subjects.subject import Subject
from mha.recordings.recording import Recording
from mha_core import AttentionConfig, AttentionInputs, SpecError, Trace
from mha_core.backend import Run
from mha_core.weights import Weights


@dataclass(frozen=True)
class RecordedSubject:
    """A stand-in for a backend that returns the recorded outputs, and refuses calls that were not recorded."""

    recording: Recording
    dtype: str
    device: str = "cpu"
    name: str = "recorded"
    recorded: ClassVar[bool] = True

    @property
    def precision(self) -> Precision:
        return Precision.of(self.dtype)

    @cached_property
    def _known(self) -> dict[bytes, Mapping[str, NDArray]]:
        """Digest of each recorded problem -> the recorded outputs by stage."""
        rounded = (problem.rounded(self.dtype) for problem in self.recording.problems)
        return {call_digest(one.config, one.weights, one.inputs): one.recorded for one in rounded}

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        def run(inputs: AttentionInputs) -> Trace:
            given = self._known.get(call_digest(config, weights, inputs))
            if given is None:
                raise CannotExpress("it was not recorded")
            return as_trace(given, weights)

        return run


def call_digest(config: AttentionConfig, weights: Mapping[str, NDArray], inputs: AttentionInputs) -> bytes:
    """Return a hash of config, weights and inputs, without the gradient with respect to the output (cotangent)."""
    whole = hashlib.sha256(json.dumps(config.to_dict()).encode())
    arrays = {name: array for name, array in input_arrays(inputs).items() if name != "cotangent"}
    for name, value in sorted({**weights, **arrays, **vars(inputs.mask)}.items()):
        if hasattr(value, "dtype"):
            array = np.asarray(value)
            whole.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        else:
            whole.update(f"{name} {value!r}".encode())
    return whole.digest()


@dataclass(frozen=True)
class Agreement:
    """A comparison of a backend's output with the recorded output of one call.

    Attributes:
        distance: the largest difference of the outputs.
        ratio: the largest difference / (error bound of the backend + error bound of the recorded layer); None if the
            backend's dtype can't hold the recorded inputs and weights.
    """

    case: str
    subject: str
    dtype: str
    distance: float
    ratio: float | None


@dataclass(frozen=True)
class Replay:
    """The results of `replay`: comparisons of recorded and recomputed calls.

    Attributes:
        recorded: for each call, the Result of comparing the recorded outputs with the reference's.
        results: for each backend and call, the Result of comparing the backend's outputs with the reference's.
        agreements: for each backend and call that it ran, the comparison with the recorded outputs.
    """

    recorded: tuple[Result, ...]
    results: tuple[Result, ...]
    agreements: tuple[Agreement, ...] = field(default=())

    @property
    def everything(self) -> tuple[Result, ...]:
        """Return all results, those of the recording itself first."""
        return (*self.recorded, *self.results)

    def to_dict(self) -> dict[str, Any]:
        """Return the three fields as a dict of JSON values."""
        return {
            "recorded": [result.to_dict() for result in self.recorded],
            "results": [result.to_dict() for result in self.results],
            "agreements": [asdict(agreement) for agreement in self.agreements],
        }


def replay(
    recording: Recording,
    subjects: Sequence[Subject],
    *,
    patterns: Sequence[str] = ("*",),
    same_dtype: bool = False,
    progress: Callable[[Result], None] = lambda result: None,
) -> Replay:
    """Return a Replay: the recorded outputs, and each subject's outputs for these calls, compared with the reference.

    Args:
        recording: the calls.
        subjects: backends, or anything else with `prepare(config, weights) -> run(inputs) -> Trace`.
        patterns: names of the calls; wildcards work.
        same_dtype: whether a subject runs only the calls that were recorded in its own dtype.
        progress: called with each Result as it comes.

    Raises:
        SpecError: no call has such a name.

    >>> from conformance.subjects.backend import ReferenceSubject
    >>> from mha.recordings.recording import RecordedCall, RecordedLayer
    >>> from mha_core import init_weights, reference
    >>> config = AttentionConfig(6, 2)
    >>> layer = RecordedLayer("", "mine.Attention", "float64", config, init_weights(config, seed=0))
    >>> inputs = AttentionInputs(*(np.ones((1, length, 6)) for length in (3, 4, 4)))
    >>> call = RecordedCall(0, inputs, {"output": reference.run(config, layer.weights, inputs).output})
    >>> outcome = replay(Recording((layer,), (call,)), [ReferenceSubject()])
    >>> [result.status for result in outcome.everything], outcome.agreements[0].ratio
    (['equal', 'equal'], 0.0)
    """
    known = selected(recording, patterns)
    recorded, results = [], []
    for result in judge_recording(recording, known):
        progress(result)
        recorded.append(result)
    agreements: list[Agreement] = []
    for subject in subjects:
        kept = _Keeping(subject)
        for case in recording.cases(subject.dtype if same_dtype else None):
            if case.id not in known:
                continue
            kept.trace = None
            result = run_case(case, kept)
            progress(result)
            results.append(result)
            if kept.trace is not None and kept.trace.output is not None and result.status in ("equal", "different"):
                agreements.append(_agreement(case, recording, kept))
    return Replay(tuple(recorded), tuple(results), tuple(agreements))


def judge_recording(recording: Recording, names: Collection[str] | None = None) -> Iterator[Result]:
    """Yield a Result for each recorded call (or those in `names`): its outputs compared with the reference's."""
    for dtype in recording.dtypes:
        subject = RecordedSubject(recording, dtype)
        for case in recording.cases(dtype):
            if names is None or case.id in names:
                yield run_case(case, subject)


def check_reproduced(recording: Recording, source: object) -> Recording:
    """Return the recording if the reference computes the same outputs. `source`: the recording's file, for messages.

    Raises:
        SpecError: an output differs from the reference's by more than its bound.
    """
    for result in judge_recording(recording):
        if result.status != "equal":
            reason = next((one.message for one in result.mismatches), result.message)
            raise SpecError(
                f"{source} holds outputs that are not those of its weights, first in the call {result.case!r}: "
                f"{reason}. mha diagnose {source} says more"
            )
    return recording


def selected(recording: Recording, patterns: Sequence[str]) -> frozenset[str]:
    """Return the names of the calls that match one of the patterns."""
    return matching(recording.names, patterns)


def matching(names: Sequence[str], patterns: Sequence[str]) -> frozenset[str]:
    """Return the `names` that match a pattern. SpecError for a pattern without a match."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise SpecError(f"no call is named {pattern!r} (there are: {', '.join(dict.fromkeys(names))})")
    return frozenset(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


class _Keeping:
    """Wraps a subject and keeps the last Trace that it returned, for the comparison with the recording."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.trace: Trace | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        run = self._subject.prepare(config, weights)

        def run_and_keep(inputs: AttentionInputs) -> Trace:
            self.trace = as_trace(run(inputs), weights)
            return self.trace

        return run_and_keep


def _agreement(case: Case, recording: Recording, kept: _Keeping) -> Agreement:
    position = recording.names.index(case.id)
    own = expected(case, kept.precision)
    theirs = expected(case, Precision.of(recording.layer_of(position).dtype))
    assert kept.trace is not None
    assert kept.trace.output is not None
    output, recorded = kept.trace.output, recording.problems[position].recorded["output"]
    if output.shape != recorded.shape:
        return Agreement(case.id, kept.name, kept.dtype, np.inf, None)
    found = worst(output, recorded, own.allowed_error["output"] + theirs.allowed_error["output"])
    alike = _numbers_of(own.problem) == _numbers_of(theirs.problem)
    return Agreement(case.id, kept.name, kept.dtype, found.largest, found.ratio if alike else None)


def _numbers_of(problem: Problem) -> bytes:
    """A hash of the numbers of a problem, whatever their dtypes."""
    wide = problem.rounded("float64")
    return call_digest(wide.config, wide.weights, wide.inputs)
