"""Typical answers: none that is wrong is right, and what is said of one is true. Each half is asked apart."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from mha.learn.bench import Bench, bench
from mha.learn.differences import location, relation
from mha.learn.exercise import StepExercise
from mha.learn.exercises import exercise
from mha.learn.judge import Verdict, judge, run_on
from mha.learn.names import Found, explained, same, sentences, steps_of
from mha.learn.running.dialects import DIALECTS
from mha.learn.tracks.own import candidates_of
from tests.mha.learn.answers import ANSWERS, Answer, half

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.nightly("a beginner's wrong answer is named, and a right one right"),
    pytest.mark.same_on_newest,  # frameworks alone differ there, and little
]

ENDLESS = {"lengths/endless", "merge/prints-for-ever"}
"""Answers that run until they are ended: these are not given much time."""


@dataclass(frozen=True)
class Outcome:
    """What the teacher says of an answer."""

    answer: Answer
    verdict: Verdict
    said: str
    """What is named, or told in a sentence; "" if neither."""
    untrue: str
    """A call that shows that it has not the mistake that is named; "" if none does."""


def said_of(verdict: Verdict, found: Found) -> str:
    """What the second level says; "" if it only shows numbers."""
    if verdict.status == "no answer":
        return verdict.line
    one = verdict.exercise
    if not isinstance(one, StepExercise):
        return verdict.line if one.track in ("catch", "experiment") else ""
    if verdict.form:
        return verdict.form if re.search(r"; it must .*?: |^what it returns is", verdict.form) else ""
    if found.explanations:
        return ", ".join(bug.id for bugs in found.explanations for bug in bugs)
    said = sentences(one, verdict.answers, candidates_of(one))
    return " ".join(said) or relation(one, verdict.answers) or location(one, verdict.answers)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> list[Outcome]:
    folder = tmp_path_factory.mktemp("answers")
    made = []
    for answer in sorted(ANSWERS, key=lambda answer: exercise(answer.exercise).dialect):
        one = exercise(answer.exercise)
        if find_spec(DIALECTS[one.dialect].module) is None:
            continue
        path = folder / one.file
        path.parent.mkdir(exist_ok=True)
        path.write_text(answer.source)
        limit = 1.0 if answer.name in ENDLESS else 5.0
        verdict = judge(one, folder, time_limit=limit if one.dialect == "numpy" else 60.0)
        found = Found()
        if verdict.status == "wrong" and isinstance(one, StepExercise) and not verdict.form:
            found = explained(one, verdict.answers)
        untrue = untrue_in(one, str(path), found) if found.explanations else ""
        made.append(Outcome(answer, verdict, said_of(verdict, found), untrue))
    return made


def fresh(one: StepExercise) -> Bench:
    """The exercise's calls with other numbers, drawn anew."""
    return bench(replace(one, cases=tuple(replace(case, id=f"{case.id}-again") for case in one.judged_by)))


def untrue_in(one: Any, path: str, found: Found) -> str:
    """The first fresh case in which no explanation gives what the answer gives; "" if there is none."""
    if found.unknown:  # what two mistakes give together is not known
        return ""
    there = fresh(one)
    given = run_on(one, path, there.places, 60.0).answers
    for place, answer in zip(there.places, given, strict=False):
        wanted = tuple(
            np.broadcast_to(a, w.shape) if one.broadcasts else a for a, w in zip(answer, place.wanted, strict=True)
        )
        if not any(same(there.with_steps(place, steps_of(one, *bugs)), wanted, place) for bugs in found.explanations):
            return place.case.id
    return ""


def test_there_are_enough_answers_over_all_exercises():
    wrong = [answer for answer in ANSWERS if not answer.right]
    assert len(wrong) >= 400
    assert min(Counter(half(answer.name) for answer in wrong).values()) >= 190


@pytest.mark.parametrize("part", [1, 2])
def test_no_wrong_answer_is_right_and_no_right_one_wrong(outcomes, part):
    mine = [one for one in outcomes if half(one.answer.name) == part]
    wrongly_right = sum(one.verdict.status == "right" for one in mine if not one.answer.right)
    wrongly_wrong = sum(one.verdict.status != "right" for one in mine if one.answer.right)
    assert (wrongly_right, wrongly_wrong) == (0, 0), f"half {part}"


@pytest.mark.parametrize("part", [1, 2])
def test_what_is_named_is_true_of_other_numbers_too(outcomes, part):
    assert sum(bool(one.untrue) for one in outcomes if half(one.answer.name) == part) == 0, f"half {part}"


@pytest.mark.parametrize("part", [1, 2])
def test_most_are_named_or_told_in_a_sentence(outcomes, part):
    mine = [one for one in outcomes if half(one.answer.name) == part and not one.answer.right]
    mine = [one for one in mine if one.verdict.exercise.track != "layer"]  # their diagnosis takes long
    told = sum(bool(one.said) for one in mine)
    print(f"half {part}: {told} of {len(mine)} named or told")
    assert told >= 0.8 * len(mine), f"half {part}: {told} of {len(mine)}"
