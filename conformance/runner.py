"""Run cases on subjects: case x subject -> Result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from conformance.case import Case
from conformance.compare import Mismatch, ParityError, compare
from conformance.expected import expected
from conformance.precision import Precision
from conformance.problem import Problem
from mha_core import AttentionConfig, AttentionInputs, Trace, reference
from mha_core.backend import Backend, Run
from mha_core.weights import Weights

Status = Literal["equal", "different", "failed"]


class Subject(Protocol):
    """Anything that can be judged: `prepare(config, weights) -> run(inputs) -> Trace`."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def precision(self) -> Precision: ...
    def prepare(self, config: AttentionConfig, weights: Weights) -> Run: ...


@dataclass(frozen=True)
class BackendSubject:
    """One backend in one dtype on one device, as a subject."""

    backend: Backend
    dtype: str
    device: str

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def precision(self) -> Precision:
        return Precision.of(self.dtype)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        return self.backend.prepare(config, weights, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class Result:
    """What came of one case on one subject.

    Attributes:
        ratios: worst error / allowed error of every stage and gradient; at most 1 where equal.
        recorded: for trained weights, the worst absolute difference from what the original
            implementation computed, per recorded stage.
        mismatches: every array that differs.
        message: one line for a subject that failed to run.
    """

    case: str
    subject: str
    dtype: str
    device: str
    status: Status
    ratios: Mapping[str, float] = field(default_factory=dict)
    recorded: Mapping[str, float] = field(default_factory=dict)
    mismatches: tuple[Mismatch, ...] = ()
    message: str = ""
    seconds: float = 0.0

    @property
    def rerun(self) -> str:
        """The command that runs this case alone again."""
        device = "" if self.device == "cpu" else f" --device {self.device}"
        return f"mha check --backend {self.subject} --case {self.case} --dtype {self.dtype}{device}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it, with `rerun`."""
        return {**asdict(self), "rerun": self.rerun}


def run_case(case: Case, subject: Subject) -> Result:
    """Judge one subject by one case. What the subject raises becomes a Result, not an error."""
    wanted = expected(case, subject.precision)
    start = time.perf_counter()

    def result(status: Status, **details: Any) -> Result:
        seconds = time.perf_counter() - start
        return Result(case.id, subject.name, subject.dtype, subject.device, status, seconds=seconds, **details)

    try:
        run = subject.prepare(wanted.problem.config, wanted.problem.weights)
        trace = run(wanted.problem.inputs)
    except Exception as error:  # a subject may raise anything; the other cases still run
        return result("failed", message=f"{type(error).__name__}: {error}".strip().splitlines()[0])
    recorded = _distance_from_recording(trace, wanted.problem)
    try:
        ratios = compare(trace, wanted.trace, wanted.allowed_error, wanted.where, subject.dtype)
    except ParityError as error:
        return result("different", ratios=error.ratios, mismatches=tuple(error.mismatches), recorded=recorded)
    return result("equal", ratios=ratios, recorded=recorded)


def run_all(
    cases: Sequence[Case], subjects: Sequence[Subject], progress: Callable[[Result], None] = lambda result: None
) -> Iterator[Result]:
    """Every case on every subject, subject by subject; `progress` sees each Result as it comes."""
    for subject in subjects:
        for case in cases:
            outcome = run_case(case, subject)
            progress(outcome)
            yield outcome


class ReferenceSubject:
    """The reference as a subject: it goes through the suite as if it were a backend."""

    name = "reference"
    dtype = "float64"
    device = "cpu"
    precision = Precision.of("float64")

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        def run(inputs: AttentionInputs) -> Trace:
            return reference.run(config, weights, inputs)

        return run


def _distance_from_recording(trace: Trace, problem: Problem) -> dict[str, float]:
    distances = {}
    for stage, recorded in problem.recorded.items():
        array = getattr(trace, stage)
        if array is not None and array.shape == recorded.shape:
            distances[stage] = float(np.abs(array - recorded).max(initial=0.0))
    return distances
