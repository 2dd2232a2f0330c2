"""The judgement of one diagnosis: is the stage right, is what it describes the layer, and was anything said wrongly?

A description is a model: bugs of the zoo, or measured ones, in the reference. It is right if it gives what the layer
gives in problems that neither the suite nor the diagnosis has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.diagnosis.diagnose import Diagnosis
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
"""And relative to what the fault changes, so that a small one isn't described by nothing at all."""

ACTING = 12
"""In so many fresh problems the layer has to differ from the right one."""

MOST = 150
"""Fresh problems that are drawn for it at most."""

FLIPPED = 0.02
"""Where numbers are rounded: the part of them that may be rounded the other way, as they lie between two."""


@dataclass(frozen=True)
class Claim:
    """One thing that a diagnosis says is so.

    Attributes:
        bugs: the model; None: it is said in words alone.
        stages: of the bugs; for words alone, the one that they name.
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
        confident: any of these is said to be the whole truth; several, where the cases can't tell them apart.
        partly: said to explain nearly all.
        stage: the first wrong stage, where the diagnosis says it by itself.
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
        differs: whether the diagnosis saw a difference at all.
        stage: whether a stage that it calls the first wrong one is one, or that of a right description: what gives the
            layer's outputs from a later stage on can't be told from it by outputs.
        described: whether what it says with confidence, or else says to explain nearly all, is the layer.
        wrong: whether it says something with confidence, and it is not so.
        silent: whether it says nothing but what is closest.
        said: what it says, in a line.
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
    """What a Diagnosis says. Of `measured`, `findings` and `first_stage` only what is there counts.

    Models of the experiments that don't explain every case are said to explain nearly all. A finding has `stage`,
    `sentence`, and perhaps `bug` (its model) and `confident`; all that are confident make one claim together, if no
    hypothesis explains all.
    """
    confident = [_of_bugs(one.bugs) for one in diagnosis.explanations]
    partly = [_of_bugs(one.bugs) for one in diagnosis.partly]
    partly += [_of_bugs(model) for model in getattr(getattr(diagnosis, "measured", None), "models", ()) if model]
    findings = tuple(getattr(diagnosis, "findings", ()))
    if not confident:
        sure = [one for one in findings if getattr(one, "confident", False)]
        unsure = [one for one in findings if not getattr(one, "confident", False)]
        confident = [_of_findings(sure)] if sure else []
        partly = partly or ([_of_findings(unsure)] if unsure else [])
    places = (diagnosis, getattr(diagnosis, "measured", None))
    stage = next((stage for place in places if (stage := getattr(place, "first_stage", None))), None)
    return Answer(tuple(confident), tuple(partly), stage)


def _of_bugs(bugs: Sequence[Bug]) -> Claim:
    return Claim(tuple(bugs), tuple(bug.stage for bug in bugs), " + ".join(bug.id for bug in bugs) or "only rounding")


def _of_findings(findings: Sequence[Any]) -> Claim:
    bugs = [getattr(one, "bug", None) for one in findings]
    model = tuple(bug for bug in bugs if bug is not None) if all(bug is not None for bug in bugs) else None
    stages = tuple(one.stage for one in findings if getattr(one, "stage", None))
    return Claim(model, stages, "; ".join(getattr(one, "sentence", "") for one in findings))


class Truth(Protocol):
    """What is known of the layer that was diagnosed."""

    @property
    def id(self) -> str: ...
    @property
    def stages(self) -> frozenset[str]: ...
    @property
    def gradients(self) -> bool: ...
    @property
    def stateful(self) -> bool: ...
    @property
    def needs(self) -> tuple[str, ...]: ...
    @property
    def roundoff(self) -> float: ...


def judge(truth: Trial | Truth, subject: Subject, diagnosis: Diagnosis) -> Verdict:
    """Judge what was said of a subject, whose truth is known."""
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


def is_right(claim: Claim, truth: Trial | Truth, subject: Subject) -> bool:
    """Whether a claim gives what the subject gives, in fresh problems.

    A layer whose calls differ can't be described by a model of one call: it is right to say of it that they do.
    """
    if truth.stateful:
        return claim.bugs is None and "call" in claim.words
    return claim.bugs is not None and _gives(claim.bugs, truth, subject)


def _gives(bugs: Sequence[Bug], truth: Trial | Truth, subject: Subject) -> bool:
    """Whether the reference with these bugs gives what a subject gives, in fresh problems where that is wrong."""
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
            claimed = reference  # a model that can't be made there says nothing against the right answer
        if any(name not in reference for name in given) or not given:
            continue  # of its gradients it shows none here
        effect = distance(given, {name: reference[name] for name in given})
        if not alike(claimed, given, effect, truth.roundoff):
            return False
        acting += effect > EFFECT
        if acting == ACTING:
            return True
    return acting > 0


def fresh_problems(truth: Trial | Truth) -> Iterator[Problem]:
    """Problems of this truth's own: every other one has what the faults need to act.

    Where the layer takes only some sizes they are of these, or hardly any of them would be answered.
    """
    dice = Dice("fresh", truth.id)
    limits = truth.limits if isinstance(truth, Trial) else Limits()
    for number in range(MOST):
        yield draw_problem(dice, truth.needs if number % 2 == 0 else (), limits.config, limits.sizes)


def _arrays(subject: Any, problem: Problem, gradients: bool) -> dict[str, NDArray]:
    arrays = ask(subject, problem).arrays()
    if not gradients:
        return {"output": arrays["output"]}
    return {name: array for name, array in arrays.items() if name.startswith("gradients.")}


def alike(claimed: dict[str, NDArray], given: dict[str, NDArray], effect: float, roundoff: float) -> bool:
    """Whether two results are equal, but for a few numbers that were rounded the other way."""
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
