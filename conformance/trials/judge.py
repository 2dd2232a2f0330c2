"""The judgement of one diagnosis: is the first stage right, is the description right, is any claim wrong?

A description is a model: bugs of the zoo, or measured ones, in the reference. It is right if it gives what the layer
gives in problems that neither the suite nor the diagnosis has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.diagnosis.diagnose import Diagnosis, Finding
from conformance.diagnosis.seen import SecondCall
from conformance.subjects.ask import CannotExpress, SubjectFailed, ask
from conformance.subjects.subject import Subject
from conformance.trials.faults import BACKWARD, Dice
from conformance.trials.made import EFFECT, Trial, distance
from conformance.trials.problems import draw_problem
from conformance.trials.subject import FaultySubject, Limits
from conformance.zoo.bug import Bug, BuggySubject
from mha_core import STAGES

CLOSE = 1e-6
"""Difference from the layer, relative to the array's largest number, up to which a description is right."""

OF_THE_EFFECT = 0.05
"""The same, relative to the effect of the fault: else "no fault" would be a right description of a small one."""

ACTING = 12
"""A right description gives the layer's output in this many fresh problems in which the fault acts."""

MOST = 150
"""The most fresh problems that are drawn to find those."""

FLIPPED = 0.02
"""Of an array that a fault rounds: the share of numbers that may be rounded to the other neighbour."""


@dataclass(frozen=True)
class Claim:
    """One claim of a diagnosis.

    Attributes:
        bugs: the model; None for a claim in words alone.
        stages: the stages of the bugs; for a claim in words, the stage that it names.
        words: the sentence.
    """

    bugs: tuple[Bug, ...] | None
    stages: tuple[str, ...]
    words: str

    @property
    def first(self) -> str | None:
        """The earliest stage."""
        return min(self.stages, key=_order, default=None)


@dataclass(frozen=True)
class Answer:
    """What a diagnosis says.

    Attributes:
        confident: claims that explain every case; several, if the cases can't tell them apart.
        partly: claims that explain nearly all cases.
        stage: the first wrong stage, where the diagnosis names it without a claim.
    """

    confident: tuple[Claim, ...]
    partly: tuple[Claim, ...]
    stage: str | None = None

    @property
    def first_stages(self) -> tuple[str, ...]:
        """The stages that are called the first wrong one."""
        if self.stage is not None:
            return (self.stage,)
        claims = self.confident or self.partly
        return tuple(dict.fromkeys(claim.first for claim in claims if claim.first is not None))


@dataclass(frozen=True)
class Verdict:
    """The judgement of one diagnosis.

    Attributes:
        differs: whether the diagnosis saw a difference.
        stage: whether it names a right first stage. The stage of a right description is right too: outputs can't tell
            an earlier fault from a later one with the same outputs.
        described: whether a confident claim is right; without confident claims, whether a partial one is.
        wrong: whether it makes confident claims, and none is right.
        silent: whether it makes no claim.
        said: its claims, in one line.
    """

    differs: bool
    stage: bool
    described: bool
    wrong: bool
    silent: bool
    said: str


def _order(stage: str) -> int:
    order = (*STAGES, BACKWARD)
    return order.index(stage) if stage in order else len(order)


def answer_of(diagnosis: Diagnosis) -> Answer:
    """The claims of a Diagnosis.

    Models of the experiments that don't explain every case count as partial claims. Where no hypothesis explains all,
    the confident findings make one claim together.
    """
    confident = [_of_bugs(one.bugs) for one in diagnosis.explanations]
    partly = [_of_bugs(one.bugs) for one in diagnosis.partly]
    if diagnosis.measured is not None:
        partly += [_of_bugs(model) for model in diagnosis.measured.models if model]
    if not confident:
        sure = [one for one in diagnosis.findings if one.confident]
        unsure = [one for one in diagnosis.findings if not one.confident]
        confident = [_of_findings(sure)] if sure else []
        partly = partly or ([_of_findings(unsure)] if unsure else [])
    return Answer(tuple(confident), tuple(partly), diagnosis.first_stage)


def _of_bugs(bugs: Sequence[Bug]) -> Claim:
    return Claim(tuple(bugs), tuple(bug.stage for bug in bugs), " + ".join(bug.id for bug in bugs) or "only rounding")


def _of_findings(findings: Sequence[Finding]) -> Claim:
    bugs = tuple(one.bug for one in findings if one.bug is not None)
    stages = tuple(one.stage for one in findings if one.stage is not None)
    return Claim(bugs if len(bugs) == len(findings) else None, stages, "; ".join(one.sentence for one in findings))


@dataclass(frozen=True)
class Known:
    """The truth of a layer with a bug of the zoo, or with none."""

    id: str
    bug: str | None
    words: str
    stages: frozenset[str]
    kind: str
    gradients: bool = False
    limits: Limits = field(default_factory=Limits)
    stateful: ClassVar = False
    needs: ClassVar = ()
    roundoff: ClassVar = 0.0


def judge(truth: Trial | Known, subject: Subject, diagnosis: Diagnosis) -> Verdict:
    """Judge the diagnosis of a subject whose truth is known."""
    answer = answer_of(diagnosis)
    claims = answer.confident or answer.partly
    right = [claim for claim in claims if is_right(claim, truth, subject)]
    stages = truth.stages | {claim.first for claim in right}
    if truth.stateful and diagnosis.again is not None:
        second = answer_of(diagnosis.again).confident
        stages |= {claim.first for claim in second if _gives(claim.bugs or (), truth, SecondCall(subject))}
    said = " | ".join(claim.words for claim in claims) or "-"
    return Verdict(
        differs=bool(diagnosis.failing) or bool(claims),
        stage=any(stage in stages for stage in answer.first_stages),
        described=bool(right),
        wrong=bool(answer.confident) and not right,
        silent=not claims,
        said=said if answer.confident or not claims else f"(nearly) {said}",
    )


def is_right(claim: Claim, truth: Trial | Known, subject: Subject) -> bool:
    """Whether the claim's model gives the subject's output in fresh problems.

    A layer whose calls differ has no model of one call: there a claim in words that calls differ is right.
    """
    if truth.stateful:
        return claim.bugs is None and "call" in claim.words
    return claim.bugs is not None and _gives(claim.bugs, truth, subject)


def _gives(bugs: Sequence[Bug], truth: Trial | Known, subject: Subject) -> bool:
    """Whether the reference with these bugs gives the subject's output, in fresh problems in which the fault acts."""
    right = FaultySubject(gradients=truth.gradients)
    model = BuggySubject(*bugs)
    acting = 0
    for problem in fresh_problems(truth):
        try:
            given = _arrays(subject, problem, truth.gradients)
        except (CannotExpress, SubjectFailed):
            continue
        reference = _arrays(right, problem, truth.gradients)
        try:
            claimed = _arrays(model, problem, truth.gradients)
        except (CannotExpress, SubjectFailed):
            claimed = reference  # a model that can't be made in these sizes changes nothing there
        if any(name not in reference for name in given) or not given:
            continue  # it gives no gradients here
        effect = distance(given, {name: reference[name] for name in given})
        if not alike(claimed, given, effect, truth.roundoff):
            return False
        acting += effect > EFFECT
        if acting == ACTING:
            return True
    return acting > 0


def fresh_problems(truth: Trial | Known) -> Iterator[Problem]:
    """Random problems, the same ones for each truth; every other one has the features that its faults need.

    Of a restricted layer they have the sizes that it takes: it would refuse nearly all others.
    """
    dice = Dice("fresh", truth.id)
    for number in range(MOST):
        yield draw_problem(dice, truth.needs if number % 2 == 0 else (), truth.limits.config, truth.limits.sizes)


def _arrays(subject: Any, problem: Problem, gradients: bool) -> dict[str, NDArray]:
    arrays = ask(subject, problem).arrays()
    if not gradients:
        return {"output": arrays["output"]}
    return {name: array for name, array in arrays.items() if name.startswith("gradients.")}


def alike(claimed: dict[str, NDArray], given: dict[str, NDArray], effect: float, roundoff: float) -> bool:
    """Whether two results are equal, except for a few numbers that were rounded to the other neighbour."""
    if any(name not in claimed or claimed[name].shape != array.shape for name, array in given.items()):
        return False
    allowed = min(CLOSE, OF_THE_EFFECT * effect) if roundoff > CLOSE or not roundoff else CLOSE
    allowed += 1e-12
    if distance(claimed, given) <= allowed:
        return True
    if not roundoff or distance(claimed, given) > 8 * roundoff:
        return False
    size = sum(array.size for array in given.values())
    other = 0
    for name, array in given.items():
        scale = np.abs(array[np.isfinite(array)]).max(initial=0.0) or 1.0
        other += int((np.abs(claimed[name] - array) > allowed * scale).sum())
    return other <= FLIPPED * size
