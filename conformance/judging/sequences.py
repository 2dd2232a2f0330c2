"""Sequences: a prepared layer that is asked call after call must answer each as if it were the first.

Each answer is compared with the reference's, and every array that was returned is looked at again at the end. Where
an answer is wrong, a layer that is prepared anew is asked the same: if that one is right, `conformance.judging.kept`
says what the other keeps from call to call.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from conformance.cases.case import Case
from conformance.cases.sequence import CallSequence, Step
from conformance.judging.compare import Mismatch, same_bits
from conformance.judging.expected import Expected, expected
from conformance.subjects.ask import CannotExpress, Session, SubjectFailed, Turn
from conformance.subjects.subject import Subject
from mha_core import Trace
from mha_core.weights import Weights

Outcome = list[Trace] | CannotExpress | SubjectFailed
"""What comes of a step: its answers, those of `case` first, then those of `beside`; or why there are none."""


OVERWRITTEN = "It keeps the arrays that it returns: a later call writes its own answer into those of an earlier one."


@dataclass(eq=False)
class Judged:
    """A finding on how a subject answered a sequence of calls.

    Attributes:
        ratios: name -> largest ratio of error to allowed error in that array, over all calls that were right.
        mismatches: one for every array that differs. `Mismatch.call` is "" if the call alone, on a new layer, is wrong.
        names: the names of the stages and gradients that were compared, as the keys of a dict.
        failed: why a call had no answer; "" if all had.
        left_out: reason -> descriptions of the steps that the subject can't express for that reason.
        steps: the steps that were run.
        kept_at: index in `steps` of a step that is wrong only after earlier ones; None if there is none.
        kept: another finding, a sentence: a later call overwrote an array that an earlier call had returned; else "".
    """

    ratios: dict[str, float] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)
    names: dict[str, None] = field(default_factory=dict)
    failed: str = ""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    kept_at: int | None = None
    kept: str = ""


def judge(sequence: CallSequence, subject: Subject) -> Judged:
    """Run all calls of a sequence on a subject (a tested layer). Return a Judged, which says how its answers differ."""
    found = Judged()
    steps = sequence.steps(few_shapes=getattr(subject, "slow_to_prepare", False))
    outcomes = _outcomes(subject, steps, Turn())
    returned: list[tuple[str, Trace]] = []
    weights: dict[int, Weights] = {}
    number = 0
    for step, outcome in zip(steps, outcomes, strict=False):
        where = f"call {number + 1} of {sequence.id} ({step.words})"
        number += step.calls
        traces = outcome if isinstance(outcome, list) else []
        if not step.spoil:
            returned += [(where, trace) for trace in traces]
        own = step.case.build().weights
        reason = str(outcome) if isinstance(outcome, CannotExpress) else ""
        if not (reason or step.reweighted) and weights.setdefault(step.layer, own) is not own:
            reason = "as its weights could not be changed before"
        if reason:
            found.left_out.setdefault(reason, []).append(step.words)
            continue
        weights[step.layer] = own
        found.steps.append(step)
        wrong = verdict(step, outcome, subject, found.ratios)
        found.names |= dict.fromkeys(_names(traces, expected(step.case, subject.precision)))
        if not wrong:
            continue
        kept = not _wrong_alone(step, subject)
        found.kept_at = len(found.steps) - 1 if kept else None
        if isinstance(outcome, SubjectFailed):
            found.failed = f"{where}: {outcome}"
            return found
        found.mismatches += [
            replace(one, call=where if kept else "", message=f"{where}, {one.message}")
            for one in wrong
            if isinstance(one, Mismatch)
        ]
        if kept:
            return found
    overwritten = list(_overwritten(returned, next(outcomes, SubjectFailed("they did not come"))))
    found.mismatches += overwritten
    found.kept = OVERWRITTEN if overwritten else ""
    return found


def play(subject: Subject, steps: Sequence[Step]) -> Iterator[tuple[Step, Outcome]]:
    """Run steps on newly prepared layers; yield (step, outcome). An outcome is a list of Traces, or an error."""
    return zip(steps, _outcomes(subject, steps), strict=False)


def _outcomes(subject: Subject, steps: Sequence[Step], *more: Turn) -> Iterator[Outcome]:
    """What comes of each step, and of more turns after these."""
    session = Session(subject, expected(steps[0].case, subject.precision).problem)
    return session.turns([*(_turn(step, subject) for step in steps), *more])


def _turn(step: Step, subject: Subject) -> Turn:
    cases = [step.case] if step.beside is None else [step.case, step.beside]
    problems = tuple(expected(case, subject.precision).problem for case in cases)
    return Turn(
        problems,
        layer=step.layer,
        spoil=step.spoil,
        times=step.times,
        thread=step.thread,
        same_arrays=step.same_arrays,
        weights=problems[0].weights if step.reweighted else None,
        how=step.reweighted or "set",
    )


def verdict(
    step: Step, outcome: Outcome, subject: Subject, ratios: dict[str, float] | None = None
) -> Sequence[Mismatch] | str:
    """Return the mismatches of a step's first wrong answer; () if all are right; a reason if there is no answer.

    Args:
        step, outcome: one of the pairs that `play` yields. subject: the tested layer.
        ratios: name -> largest ratio of error to allowed error so far. It is updated by each answer that is right.
    """
    if not isinstance(outcome, list):
        return str(outcome)
    judged: list[tuple[Case, Trace]] = []
    for number, trace in enumerate(outcome):
        case = step.case if number < step.times or step.beside is None else step.beside
        if not any(case is other and same_bits(trace.arrays(), same.arrays()) for other, same in judged):
            judged.append((case, trace))
    for case, trace in judged:
        own, mismatches = expected(case, subject.precision).judge_of(subject, trace)
        if mismatches and step.instead is not None:
            own, instead = expected(step.instead, subject.precision).judge_of(subject, trace)
            mismatches = mismatches if instead else ()
        if mismatches:
            return mismatches
        if ratios is not None:
            ratios |= {name: max(ratio, ratios.get(name, 0.0)) for name, ratio in own.items()}
    return ()


def _names(traces: Sequence[Trace], wanted: Expected) -> list[str]:
    return [name for name in wanted.trace.arrays() if traces and name in traces[0].arrays()]


def _wrong_alone(step: Step, subject: Subject) -> bool:
    """Whether a layer prepared anew is wrong too, asked this one call."""
    alone = replace(step, thread=0, beside=None, times=1, same_arrays=False, reweighted="")
    return any(verdict(one, outcome, subject) for one, outcome in play(subject, [alone]))


def _overwritten(returned: Sequence[tuple[str, Trace]], now: Outcome) -> Iterator[Mismatch]:
    """The first array that was returned and holds other numbers by now, if there is one."""
    if not isinstance(now, list):
        call = "earlier answers looked at again at the end"
        yield Mismatch("output", f"{call}: {now}", call=call)
        return
    for (where, before), after in zip(returned, now, strict=True):
        if same_bits(before.arrays(), after.arrays()):
            continue
        call = f"the answer of {where} looked at again at the end"
        there = after.arrays()
        for name, array in before.arrays().items():
            other = there.get(name)
            if other is None or other.shape != array.shape:
                yield Mismatch(name, f"{call}: {name} is not what it was", call=call)
                return
            wrong = int(np.count_nonzero((array != other) & ~(np.isnan(array) & np.isnan(other))))
            if wrong:
                numbers = f"{wrong} of its {array.size} numbers are others than when it was returned"
                yield Mismatch(name, f"{call}: in {name} {numbers}", wrong=wrong, total=array.size, call=call)
                return
