"""Run cases on subjects: case x subject -> Result."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

from conformance.case import Case
from conformance.compare import Mismatch, ParityError, compare
from conformance.deviations import Deviations, judge
from conformance.expected import expected
from conformance.guard import CannotExpress, SubjectFailed, ask
from conformance.precision import Precision
from conformance.problem import Problem
from mha_core import AttentionConfig, AttentionInputs, Trace, reference
from mha_core.backend import Backend, Run
from mha_core.weights import Weights

Status = Literal["equal", "deviates", "different", "failed", "unsupported"]
"""What came of a case: equal to the reference, different as the table of deviations lists it, different, no answer,
or the subject can't express it.
"""


class Subject(Protocol):
    """Anything that can be judged: `prepare(config, weights) -> run(inputs) -> Trace`.

    It may also have `supports(config, inputs)`, which gives None or what it can't express of a case;
    `time_limit`, the seconds that it may take for one case; and `selector`, the options of `mha check`
    that choose it.
    """

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
    """One backend in one dtype on one device, as a subject.

    `path` is the way in which the framework runs the layer, such as "compiled"; None is its usual one.
    """

    backend: Backend
    dtype: str
    device: str
    path: str | None = None

    @property
    def name(self) -> str:
        return self.backend.name if self.path is None else f"{self.backend.name} {self.path}"

    @property
    def selector(self) -> str:
        path = "" if self.path is None else f" --path {self.path}"
        device = "" if self.device == "cpu" else f" --device {self.device}"
        return f"--backend {self.backend.name}{path}{device}"

    @property
    def precision(self) -> Precision:
        path = self.backend.paths()[0] if self.path is None else self.path
        return Precision.of(self.dtype).with_kernel(self.backend.softmax_kernel(self.device, path))

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        path = {} if self.path is None else {"path": self.path}
        return self.backend.prepare(config, weights, dtype=self.dtype, device=self.device, **path)


def paths_to_check(backend: Backend, path: str | None) -> tuple[str | None, ...]:
    """`path` alone, or the default ones: None, which is the backend's usual path, and the others."""
    return (None, *backend.default_paths()[1:]) if path is None else (path,)


@dataclass(frozen=True)
class Result:
    """What came of one case on one subject.

    Attributes:
        ratios: worst error / allowed error of every stage and gradient; at most 1 where equal.
        recorded: for trained weights, the worst absolute difference from what the original
            implementation computed, per recorded stage.
        mismatches: every array that differs.
        message: one line for a subject that failed to run, can't express the case, or deviates as known.
        judged: the stages and "gradients.NAME" that the subject exposes, which were compared.
        selector: the options of `mha check` that choose the subject.
        deviations: the ids of the listed deviations that were seen.
        gone: the ids of those that should have been and were not.
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
    judged: tuple[str, ...] = ()
    selector: str = ""
    deviations: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def rerun(self) -> str:
        """The command that runs this case alone again."""
        device = "" if self.device == "cpu" else f" --device {self.device}"
        selector = self.selector or f"--backend {self.subject}{device}"
        if self.case.startswith("onnx:"):  # its vectors have a dtype of their own
            return f"mha check --suite onnx {selector} --case {shlex.quote(self.case.partition('/')[0])}"
        return f"mha check {selector} --case {shlex.quote(self.case)} --dtype {self.dtype}"

    @property
    def stale(self) -> bool:
        """Whether nothing is wrong but the table of deviations: each mismatch is one that no longer happens."""
        return 0 < len(self.gone) == len(self.mismatches)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it, with `rerun`."""
        return {**asdict(self), "rerun": self.rerun}


def run_case(case: Case, subject: Subject, known: Deviations | None = None) -> Result:
    """Judge one subject by one case. What the subject raises becomes a Result, not an error.

    Args:
        case, subject: what is run.
        known: the deviations that may show, and must. Default: none, every difference is an error.
    """
    result = _judge(case, subject)
    if known is None:
        return result
    if known.option:
        result = replace(result, selector=f"{result.selector} {known.option}".strip())
    return judge(result, known.expected(subject, case.id, subject.dtype))


def _judge(case: Case, subject: Subject) -> Result:
    wanted = expected(case, subject.precision)
    start = time.perf_counter()

    def result(status: Status, **details: Any) -> Result:
        seconds = time.perf_counter() - start
        selector = getattr(subject, "selector", "")
        return Result(
            case.id,
            subject.name,
            subject.dtype,
            subject.device,
            status,
            seconds=seconds,
            selector=selector,
            **details,
        )

    try:
        trace = ask(subject, wanted.problem)
    except CannotExpress as reason:
        return result("unsupported", message=f"cannot express: {reason}")
    except SubjectFailed as error:
        return result("failed", message=str(error))
    recorded = _distance_from_recording(trace, wanted.problem)
    judged = _judged(trace, wanted.trace)
    try:
        ratios = compare(trace, wanted.trace, wanted.allowed_error, wanted.where, subject.dtype)
    except ParityError as error:
        mismatches = tuple(error.mismatches)
        return result("different", ratios=error.ratios, mismatches=mismatches, recorded=recorded, judged=judged)
    return result("equal", ratios=ratios, recorded=recorded, judged=judged)


def run_all(
    cases: Sequence[Case],
    subjects: Sequence[Subject],
    progress: Callable[[Result], None] = lambda result: None,
    known: Deviations | None = None,
) -> Iterator[Result]:
    """Every case on every subject, subject by subject; `progress` sees each Result as it comes."""
    for subject in subjects:
        for case in cases:
            outcome = run_case(case, subject, known)
            progress(outcome)
            yield outcome


def until_interrupted(results: Iterable[Result]) -> tuple[list[Result], bool]:
    """All results, or those that are there when the user interrupts; and whether that happened."""
    finished: list[Result] = []
    try:
        for result in results:
            finished.append(result)
    except KeyboardInterrupt:
        return finished, True
    return finished, False


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


def _judged(trace: Trace, wanted: Trace) -> tuple[str, ...]:
    """The names of the arrays that both have."""
    gradients = [] if trace.gradients is None else list(wanted.gradients or ())
    return (
        *(name for name, _ in trace.stages()),
        *(f"gradients.{name}" for name in gradients if name in (trace.gradients or {})),
    )


def _distance_from_recording(trace: Trace, problem: Problem) -> dict[str, float]:
    distances = {}
    for stage, recorded in problem.recorded.items():
        array = getattr(trace, stage)
        if array is not None and array.shape == recorded.shape and array.dtype.kind == "f":
            both = np.isfinite(array) & np.isfinite(recorded)
            distances[stage] = float(np.abs(array[both] - recorded[both]).max(initial=0.0))
    return distances
