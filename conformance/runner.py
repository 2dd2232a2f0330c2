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
from conformance.expected import Expected, expected
from conformance.guard import CannotExpress, Session, SubjectFailed
from conformance.precision import Precision
from conformance.problem import Problem
from conformance.repeats import asked_again, can_be_asked_again, repeats
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
    `time_limit`, the seconds that it may take for one answer; `recorded`, true if it gives what was recorded and can't
    compute anything else; and `selector`, the options of `mha check`
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
        gradients_asked: whether the case asks for gradients.
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
    gradients_asked: bool = False
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

    @property
    def wrong_at_once(self) -> bool:
        """Whether something was wrong when the subject was asked for the first time, and is not merely gone."""
        return not self.stale and any(not mismatch.call for mismatch in self.mismatches)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it, with `rerun`."""
        return {**asdict(self), "rerun": self.rerun}


def run_case(case: Case, subject: Subject, known: Deviations | None = None) -> Result:
    """Judge one subject by one case. What the subject raises becomes a Result, not an error.

    Args:
        case, subject: what is run.
        known: the deviations that may show, and must. Default: none, every difference is an error.
    """
    return CaseRunner(subject, known).run(case)


class CaseRunner:
    """Judges one subject, case after case.

    A subject that is right in a case is asked again (see `conformance.repeats`), and once more after the next case:
    what it computes for one problem may not depend on another.
    """

    def __init__(self, subject: Subject, known: Deviations | None = None) -> None:
        self.subject = subject
        self.known = known
        self._last: tuple[str, Session, Expected] | None = None

    def run(self, case: Case) -> Result:
        """Judge the subject by one case."""
        result = self._judge(case)
        if self.known is None:
            return result
        if self.known.option:
            result = replace(result, selector=f"{result.selector} {self.known.option}".strip())
        return judge(result, self.known.expected(self.subject, case.id, self.subject.dtype))

    def _judge(self, case: Case) -> Result:
        subject = self.subject
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
                gradients_asked=wanted.trace.gradients is not None,
                **details,
            )

        session = Session(subject, wanted.problem)
        try:
            trace = session.answer()
        except CannotExpress as reason:
            return result("unsupported", message=f"cannot express: {reason}")
        except SubjectFailed as error:
            return result("failed", message=str(error))
        recorded = _distance_from_recording(trace, wanted.problem)
        judged = _judged(trace, wanted.trace)
        try:
            ratios = compare(trace, wanted.trace, wanted.allowed_error, wanted.where, subject.dtype)
            mismatches = tuple(self._asked_again(case.id, session, wanted))
        except ParityError as error:
            mismatches = tuple(error.mismatches)
            return result("different", ratios=error.ratios, mismatches=mismatches, recorded=recorded, judged=judged)
        except SubjectFailed as error:
            return result("failed", message=str(error))
        status: Status = "different" if mismatches else "equal"
        return result(status, ratios=ratios, mismatches=mismatches, recorded=recorded, judged=judged)

    def _asked_again(self, case: str, session: Session, wanted: Expected) -> Iterator[Mismatch]:
        """What differs when a subject that was right is asked again, and when the last case is."""
        if not can_be_asked_again(self.subject):
            return
        last, self._last = self._last, None
        yield from repeats(session, wanted)
        if last is not None:
            other, other_session, other_wanted = last
            yield from asked_again(other_session, other_wanted, f"case {other} asked again after this one")
        self._last = case, session, wanted


def run_all(
    cases: Sequence[Case],
    subjects: Sequence[Subject],
    progress: Callable[[Result], None] = lambda result: None,
    known: Deviations | None = None,
) -> Iterator[Result]:
    """Every case on every subject, subject by subject; `progress` sees each Result as it comes."""
    for subject in subjects:
        runner = CaseRunner(subject, known)
        for case in cases:
            outcome = runner.run(case)
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
    return tuple(name for name in wanted.arrays() if name in trace.arrays())


def _distance_from_recording(trace: Trace, problem: Problem) -> dict[str, float]:
    distances = {}
    for stage, recorded in problem.recorded.items():
        array = getattr(trace, stage)
        if array is not None and array.shape == recorded.shape and array.dtype.kind == "f":
            both = np.isfinite(array) & np.isfinite(recorded)
            distances[stage] = float(np.abs(array[both] - recorded[both]).max(initial=0.0))
    return distances
