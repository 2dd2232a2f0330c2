"""Known mistakes that explain what a learner's function gives: candidates of its exercise, else bugs of the zoo.

An explanation gives every array of every case, the right and the wrong ones. Bugs that give the same everywhere are
named together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.judging.distance import RELATIVE, SLACK
from conformance.zoo.bug import Bug, DoesNotApply, compatible, pipelines
from conformance.zoo.registry import all_bugs
from mha.learn.bench import PRECISION, Bench, Place, bench, distance
from mha.learn.exercise import StepExercise
from mha.learn.tracks.own import Candidate
from mha_core.reference.state import Step

Answer = tuple[NDArray, ...]
"""What a function returned in one case."""


OF_NO_EXERCISE = ("block-", "online-", "packed-")
"""Bugs of layers that compute block by block, or hold several matrices in one: no exercise asks for that."""


@dataclass(frozen=True)
class Mistake:
    """A bug that an answer to an exercise may have.

    Attributes:
        bug: the bug.
        answers: what a function with this bug returns in each case; None where the bug does not apply.
    """

    bug: Bug
    answers: tuple[Answer | None, ...]


def steps_of(exercise: StepExercise, *bugs: Bug) -> dict[str, Step]:
    """Return step name -> wrong function, for the steps of the exercise that one of the bugs changes."""
    forward, backward = pipelines(*bugs)
    both = {**forward, **backward}
    return {
        name: both[name] for bug in bugs for name in bug.steps if name in exercise.covers or bug.id in exercise.also
    }


@cache
def mistakes(exercise: StepExercise) -> tuple[Mistake, ...]:
    """Return a Mistake (a bug and its answers) for every bug that a learner may make and that changes some answer."""
    found = []
    there = bench(exercise)
    for bug in all_bugs():
        if (
            not bug.equivalent
            and not bug.id.startswith(OF_NO_EXERCISE)
            and bug.id not in exercise.never
            and (bug.steps & set(exercise.covers) or bug.id in exercise.also)
        ):
            answers = tuple(_given_by(there, place, bug) for place in there.places)
            if any(one is not None and not same(one, place.wanted, place) for one, place in _beside(answers, there)):
                found.append(Mistake(bug, answers))
    return tuple(found)


def _given_by(there: Bench, place: Place, *bugs: Bug) -> Answer | None:
    try:
        return there.with_steps(place, steps_of(there.exercise, *bugs))
    except DoesNotApply:
        return None


def _beside(answers: Sequence[Answer | None], there: Bench) -> Iterator[tuple[Answer | None, Place]]:
    return zip(answers, there.places, strict=True)


@dataclass(frozen=True)
class Found:
    """A result of `explained`: the bugs that explain the answers of a learner's function.

    Attributes:
        explanations: alternatives, each of one bug, or of a pair of bugs if no single bug explains all answers.
        unknown: the number of wrong rows that a pair leaves unexplained: both of its bugs change the same step, and
            both change these rows. 0 if everything is explained.
        rows: the number of all wrong rows; 0 if everything is explained.
    """

    explanations: tuple[tuple[Bug, ...], ...] = ()
    unknown: int = 0
    rows: int = 0


def explained(exercise: StepExercise, answers: Sequence[Answer]) -> Found:
    """Return a Found: the bugs that explain a learner's answers in all cases. It is empty if no bug does.

    Args:
        exercise: the exercise that was tried.
        answers: the arrays that the function returned in each case, in the order of the cases.
    """
    there = bench(exercise)
    if len(answers) != len(there.places):
        return Found()
    known = mistakes(exercise)
    single = tuple(
        (mistake.bug,)
        for mistake in known
        if all(
            one is not None and same(one, answer, place)
            for one, answer, place in zip(mistake.answers, answers, there.places, strict=True)
        )
    )
    whole = single or _together(there, known, answers)
    return Found(whole) if whole else _apart(there, known, answers)


def _together(there: Bench, known: Sequence[Mistake], answers: Sequence[Answer]) -> tuple[tuple[Bug, ...], ...]:
    """Pairs in different steps, which can be run together."""
    found = []
    covers = set(there.exercise.covers)
    for a, b in combinations([mistake.bug for mistake in known], 2):
        if compatible(a, b) and (a.steps & covers) and (b.steps & covers):
            for place, answer in zip(there.places, answers, strict=True):
                given = _given_by(there, place, a, b)
                if given is None or not same(given, answer, place):
                    break
            else:
                found.append((a, b))
    return tuple(found)


MOST_UNKNOWN = 0.25
"""The share of the wrong rows that two bugs in one step may leave unknown, because both show there."""


def _apart(there: Bench, known: Sequence[Mistake], answers: Sequence[Answer]) -> Found:
    """Pairs in one step, which can't be run together: where one of them alone shows in a row (of the last axis), it is
    what that one gives, and each has such rows; where none of them shows, it is right.

    What both give together is not known. The pairs that leave the fewest rows to that are found.
    """
    if any(_shapes(one) != _shapes(place.wanted) for one, place in zip(answers, there.places, strict=True)):
        return Found()
    wrong = ~_rows(there, [place.wanted for place in there.places], answers)
    views = []
    for mistake in known:
        given = [one if one is not None else place.wanted for one, place in _beside(mistake.answers, there)]
        if all(_shapes(one) == _shapes(place.wanted) for one, place in zip(given, there.places, strict=True)):
            shows = ~_rows(there, given, [place.wanted for place in there.places])
            fits = _rows(there, given, answers)
            if (shows & fits).any():
                views.append((mistake.bug, shows, fits))
    found: list[tuple[int, tuple[Bug, ...]]] = []
    for (a, a_shows, a_fits), (b, b_shows, b_fits) in combinations(views, 2):
        only_a, only_b = a_shows & ~b_shows, b_shows & ~a_shows
        both = a_shows & b_shows
        if np.select([only_a, only_b], [a_fits, b_fits], both | ~wrong).all() and only_a.any() and only_b.any():
            found.append((int((both & ~a_fits & ~b_fits).sum()), (a, b)))
    least, total = min((unknown for unknown, _ in found), default=0), int(wrong.sum())
    if not found or least > MOST_UNKNOWN * total:
        return Found()
    return Found(tuple(pair for unknown, pair in found if unknown == least), least, total)


def _shapes(answer: Answer) -> list[tuple[int, ...]]:
    return [array.shape for array in answer]


def _rows(there: Bench, some: Sequence[Answer], others: Sequence[Answer], *, strict: bool = False) -> NDArray[np.bool_]:
    """For each row of each array of each case, in one line, whether two answers are equal there.

    In a mask each element is a row: none depends on another. `strict`: NaN stands where NaN stands, nowhere else.
    """
    return np.concatenate(
        [
            close(one, other, allowed, strict=strict)
            .reshape(-1, 1 if one.dtype == bool else one.shape[-1] or 1)
            .all(axis=-1)
            for a, b, place in zip(some, others, there.places, strict=True)
            for one, other, allowed in zip(a, b, place.allowed, strict=True)
        ]
    )


def same(answer: Answer, other: Answer, place: Place) -> bool:
    """Return whether two answers to a case, a bug's and a learner's (`other`), are equal within rounding."""
    return all(
        one.shape == two.shape and bool(close(one, two, allowed).all())
        for one, two, allowed in zip(answer, other, place.allowed, strict=True)
    )


def close(array: NDArray, other: NDArray, allowed: NDArray, *, strict: bool = False) -> NDArray[np.bool_]:
    """Return a bool array, True where a bug's array and a learner's (`other`) are equal within rounding.

    Errors somewhat above `allowed` are accepted, since that bound was computed without the bug. If `strict` is False, a
    NaN in `other` is also accepted wherever the same row (last axis) of `array` has any NaN.
    """
    if array.shape != allowed.shape:  # a mistake that changes the shape
        allowed = np.full(array.shape, allowed.max(initial=0.0))
    magnitude = np.abs(array[np.isfinite(array)]).max(initial=0.0) if array.dtype.kind == "f" else 0.0
    near = distance(array, other) <= SLACK * allowed + RELATIVE * PRECISION.u * magnitude
    if strict or array.dtype.kind != "f" or not array.ndim:
        return near
    return near | (np.isnan(other) & np.isnan(array).any(axis=-1, keepdims=True))


# Candidates ---------------------------------------------------------------------------------------------


def sentences(exercise: StepExercise, answers: Sequence[Answer], candidates: Iterable[Candidate]) -> tuple[str, ...]:
    """Return the sentences on mistakes that together explain all wrong rows; () if there are none.

    A candidate is a pair (sentence on a mistake, function with this mistake). The sentence counts if the learner's
    answer equals the function's in each row that the mistake changes. Sentences on the most rows come first.
    """
    there = bench(exercise)
    right = [place.wanted for place in there.places]
    if len(answers) != len(right) or any(map(_differ, answers, right)):
        return ()
    left = ~_rows(there, right, answers, strict=True)
    true: list[tuple[str, NDArray[np.bool_]]] = []
    for words, function in candidates:
        given = [_candidate_gives(function, place) for place in there.places]
        if None not in given:
            made = [one for one in given if one is not None]
            shows = ~_rows(there, right, made, strict=True)
            lost = all(np.isnan(one).all() for answer in made for one in answer)  # anything may be its reason
            if not lost and shows.any() and _rows(there, made, answers, strict=True)[shows].all():
                true.append((words, shows))
    said = []
    for words, shows in sorted(true, key=lambda one: -one[1].sum()):
        if (left & shows).any():
            said.append(words)
            left &= ~shows
    return () if left.any() else tuple(said)


def other_shape(exercise: StepExercise, answers: Sequence[Answer], candidates: Iterable[Candidate]) -> str:
    """Return the sentence of the first candidate (sentence, function) whose function returns these `answers`, or ""."""
    places = bench(exercise).places
    for words, function in candidates:
        given = [(np.asarray(function(*place.arguments)),) for place in places]
        if len(answers) == len(places) and all(
            _shapes(one) == _shapes(other) and same(one, other, place)
            for one, other, place in zip(given, answers, places, strict=True)
        ):
            return words
    return ""


def _differ(one: Answer, other: Answer) -> bool:
    return _shapes(one) != _shapes(other)


def _candidate_gives(function: Callable[..., Any], place: Place) -> Answer | None:
    """What a candidate gives in a case; None if it can't be computed there."""
    try:
        with any_numbers:
            given = function(*place.arguments)
        given = given if isinstance(given, tuple) else (given,)
        return tuple(np.broadcast_to(one, right.shape) for one, right in zip(given, place.wanted, strict=True))
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError):
        return None
