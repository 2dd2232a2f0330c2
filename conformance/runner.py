"""Run cases on subjects: case x subject -> Result."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.cases.sequence import Asked, CallSequence
from conformance.deviations.known import Deviations, with_known
from conformance.judging.compare import Mismatch, in_float64
from conformance.judging.expected import Expected, expected
from conformance.judging.kept import what_is_kept
from conformance.judging.repeats import Again, Question, questions
from conformance.judging.result import Result, Status
from conformance.judging.sequences import Judged, judge
from conformance.subjects.ask import CannotExpress, Session, SubjectFailed, can_be_asked_again
from conformance.subjects.backend import as_users_run
from conformance.subjects.subject import Subject
from mha_core import Trace

Item = TypeVar("Item")


def run_case(case: Asked, subject: Subject, known: Deviations | None = None) -> Result:
    """Run a case on a subject (a tested layer) and return the Result, even if the subject raises.

    Args:
        case, subject: the case, or a sequence of calls, and the subject that runs it.
        known: the table of known deviations. Those listed for the case must occur. Default: an empty table.
    """
    return CaseRunner(subject, known).run(case)


@dataclass(frozen=True)
class _Right:
    """A case that was answered right: its id, the layer that was asked, its answer, and the expected one."""

    case: str
    session: Session
    trace: Trace
    wanted: Expected


class CaseRunner:
    """A runner of one subject (a tested layer), which judges its answers case by case.

    A right answer is checked by repeating the call, also after the next case, because an answer must not depend on
    earlier calls. `again` says how often (see `conformance.judging.repeats`).
    """

    def __init__(self, subject: Subject, known: Deviations | None = None, again: Again = "in every way") -> None:
        self.subject = subject
        self.known = known
        self.again = again
        self._last: _Right | None = None

    @property
    def last(self) -> str | None:
        """Return the id of the last right case, which is repeated after the next case; None if there is none."""
        return None if self._last is None else self._last.case

    def run(self, case: Asked) -> Result:
        """Judge the subject by one case, or one sequence of calls."""
        result = self._judge(case) if isinstance(case, Case) else self._judge_sequence(case)
        if self.known is None:
            return result
        if self.known.option:
            result = replace(result, selector=f"{result.selector} {self.known.option}".strip())
        return with_known(result, self.known.listed_for(self.subject, case.id, self.subject.dtype))

    def _judge(self, case: Case) -> Result:
        subject = self.subject
        wanted = expected(case, subject.precision)
        result = partial(self._result, case.id, time.perf_counter(), wanted.trace.gradients is not None)
        session = Session(as_users_run(subject) if case.as_users_run else subject, wanted.problem)
        again = questions(wanted, self.again) if can_be_asked_again(subject) else ()
        answers = session.answers([wanted.problem, *(question.wanted.problem for question in again)])
        try:
            trace = next(answers)
        except CannotExpress as reason:
            return result("unsupported", message=f"cannot express: {reason}")
        except SubjectFailed as error:
            return result("failed", message=str(error))
        recorded = _distance_from_recording(trace, wanted.problem)
        wide = in_float64(trace, subject.dtype) if getattr(subject, "own", False) else ()
        judged = _judged(trace, wanted.trace)
        ratios, mismatches = wanted.judge_of(subject, trace)
        try:
            first = _Right(case.id, session, trace, wanted)
            mismatches = mismatches or tuple(self._repeated(first, again, answers))
        except SubjectFailed as error:
            return result("failed", message=str(error))
        status: Status = "different" if mismatches else "equal"
        found = {"ratios": ratios, "mismatches": mismatches, "recorded": recorded, "judged": judged}
        return result(status, **found, in_float64=wide)

    def _judge_sequence(self, sequence: CallSequence) -> Result:
        subject = self.subject
        start = time.perf_counter()
        found, kept = Judged(), ""
        if can_be_asked_again(subject):
            found = judge(sequence, subject)
            kept = found.kept
            if found.kept_at is not None:
                kept = what_is_kept(found.steps[: found.kept_at + 1], subject)
        status: Status = "failed" if found.failed else "different" if found.mismatches else "equal"
        message = found.failed
        if not found.failed and len({step.case for step in found.steps}) < 2:
            status, message = "unsupported", f"cannot express: {next(iter(found.left_out), 'more than one call')}"
        return self._result(
            sequence.id,
            start,
            any(step.case.build().inputs.cotangent is not None for step in found.steps),
            status,
            ratios=found.ratios,
            mismatches=tuple(found.mismatches),
            message=message,
            judged=tuple(found.names),
            kept=kept,
            left_out={} if status == "unsupported" else {why: tuple(words) for why, words in found.left_out.items()},
        )

    def _result(self, case: str, start: float, gradients_asked: bool, status: Status, **details: Any) -> Result:
        own = self.subject
        details |= {"seconds": time.perf_counter() - start, "selector": getattr(own, "selector", "")}
        return Result(case, own.name, own.dtype, own.device, status, gradients_asked=gradients_asked, **details)

    def _repeated(self, first: _Right, again: Sequence[Question], answers: Iterator[Trace]) -> Iterator[Mismatch]:
        """The mismatches of a subject whose first answer was right, asked again, and then about the case before."""
        for question in again:
            yield from self._asked(question, first.trace, answers)
        if not again or self.again == "in one way":
            return
        last, self._last = self._last, None
        if last is not None:
            question = Question(f"case {last.case} asked again after this one", last.wanted)
            yield from self._asked(question, last.trace, last.session.answers([last.wanted.problem]))
        self._last = first

    def _asked(self, question: Question, first: Trace, answers: Iterator[Trace]) -> Iterator[Mismatch]:
        try:
            trace = next(answers)
        except SubjectFailed as error:
            raise SubjectFailed(f"{question.call}: {error}") from error
        yield from question.mismatches(self.subject, trace, first)


def until_interrupted(results: Iterable[Item]) -> tuple[list[Item], bool]:
    """Return (all results, False), or after an interrupt by the user (the results so far, True)."""
    finished: list[Item] = []
    try:
        for result in results:
            finished.append(result)
    except KeyboardInterrupt:
        return finished, True
    return finished, False


def _judged(trace: Trace, wanted: Trace) -> tuple[str, ...]:
    """The names of the arrays that both traces have."""
    return tuple(name for name in wanted.arrays() if name in trace.arrays())


def _distance_from_recording(trace: Trace, problem: Problem) -> dict[str, float]:
    distances = {}
    for stage, recorded in problem.recorded.items():
        array = getattr(trace, stage)
        if array is not None and array.shape == recorded.shape and array.dtype.kind == "f":
            both = np.isfinite(array) & np.isfinite(recorded)
            distances[stage] = float(np.abs(array[both] - recorded[both]).max(initial=0.0))
    return distances
