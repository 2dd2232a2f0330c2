"""Judge a learner's file: right, wrong with the first wrong element, still to be written, or without an answer."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from conformance.cases.table import all_cases
from conformance.workers.execute import end_idle
from conformance.workers.protocol import WorkerDied
from mha.learn.bench import Bench, Place, bench, distance
from mha.learn.exercise import (
    NUMPY,
    CatchExercise,
    Exercise,
    HeadsExercise,
    LayerExercise,
    NumbersExercise,
    StepExercise,
)
from mha.learn.form import of_dtype, of_error, of_order, of_shape
from mha.learn.handout.folder import is_untouched
from mha.learn.running.attempt import Asked, Attempt, attempt, measured, returned
from mha.learn.running.catching import Chosen, caught, chosen
from mha.learn.running.layering import Layered, judged
from mha.learn.running.workshop import MORE_TIME, ask, home, why_not
from mha.learn.words import at, described, sizes_in, sizes_of, widths_of

TIME_LIMIT = 10.0
"""Seconds that a file may take for all calls of an exercise."""

SAME = 1e-9
"""How near two numbers never come that are measured on draws of their own."""

Status = Literal["right", "wrong", "to do", "no answer", "can't run"]


@dataclass(frozen=True)
class Verdict:
    """A verdict on one exercise.

    Attributes:
        exercise: the exercise that was judged.
        status: "right"; "wrong"; "to do" (not written yet); "no answer" (the file does not import, raises, hangs, or
            returns something of another kind); or "can't run" (its framework is not installed).
        line: the verdict in one sentence.
        answers: the arrays that the function returned in each case; () if they could not be compared.
        printed: the beginning of what the file printed.
        form: a sentence on a wrong shape or dtype; "" if all are right.
        case: for a layer, the id of the first wrong case.
        why: for an experiment, a sentence on the mistake that gives nearly the same numbers.
    """

    exercise: Exercise
    status: Status
    line: str
    answers: tuple[tuple[NDArray, ...], ...] = ()
    printed: str = ""
    form: str = ""
    case: str = ""
    why: str = ""


def judge(exercise: Exercise, folder: Path, *, time_limit: float = TIME_LIMIT) -> Verdict:
    """Judge the file of an exercise in a folder that `mha learn start` wrote.

    Args:
        time_limit: seconds that the file may take. It runs in a process of its own, which is ended after that time.
    """
    if is_untouched(exercise, folder):  # nothing is run, and no framework imported
        return Verdict(exercise, "to do", f"{exercise.file} is as it was given out")
    missing = why_not(exercise.dialect)
    if missing:
        return Verdict(exercise, "can't run", missing)
    path = str((folder / exercise.file).resolve())
    try:
        if isinstance(exercise, StepExercise):
            return _judge_step(exercise, path, time_limit)
        if isinstance(exercise, CatchExercise):
            return _judge_catch(exercise, path, time_limit)
        if isinstance(exercise, LayerExercise):
            return _judge_layer(exercise, path, time_limit)
        if isinstance(exercise, HeadsExercise):
            return _judge_heads(exercise, path, time_limit)
        assert isinstance(exercise, NumbersExercise)
        return _judge_numbers(exercise, path, time_limit)
    except WorkerDied as death:
        return Verdict(exercise, "no answer", str(death))


def judge_all(exercises: Iterable[Exercise], folder: Path, *, time_limit: float = TIME_LIMIT) -> Iterator[Verdict]:
    """Judge the exercises one after the other, and yield the verdicts.

    A file that is not right is judged again in a new process, since earlier files may have changed NumPy's state.
    """
    spoilt = False
    for exercise in exercises:
        verdict = judge(exercise, folder, time_limit=time_limit)
        if verdict.status in ("wrong", "no answer") and exercise.dialect == NUMPY and spoilt:
            end_idle(home(NUMPY))  # the next call gets a new process
            verdict = judge(exercise, folder, time_limit=time_limit)
        spoilt = spoilt or exercise.dialect == NUMPY
        yield verdict


# A step ------------------------------------------------------------------------------------------------


def _judge_step(exercise: StepExercise, path: str, time_limit: float) -> Verdict:
    verdict = verdict_of(exercise, run_on(exercise, path, bench(exercise).places, time_limit))
    if verdict.status != "right":
        return verdict
    other = replace(exercise, cases=(exercise.drawn_case(_number_of(path)),))
    there = Bench(other)
    again = verdict_of(other, run_on(other, path, there.places, time_limit), there)
    if again.status == "right":
        return verdict
    line = f"right in its {len(exercise.cases)} cases, and not in one that is drawn anew: {again.line}"
    return Verdict(exercise, again.status, line, verdict.answers, again.printed, line)


def _number_of(path: str) -> int:
    """A number from the text of a file: the same text is judged by the same cases, and no text can know them."""
    return zlib.crc32(Path(path).read_bytes())


def run_on(exercise: StepExercise, path: str, places: Sequence[Place], time_limit: float = TIME_LIMIT) -> Attempt:
    """Run a learner's file on the cases `places`. Return an Attempt: the answers, and why a case failed, if one did."""
    asked = Asked(
        path,
        exercise.function,
        exercise.parameters,
        exercise.names,
        tuple((place.arguments, tuple(one.shape for one in place.wanted)) for place in places),
        exercise.dialect,
    )
    found: Attempt = ask(exercise.dialect, time_limit, attempt, asked)
    return found


def verdict_of(exercise: StepExercise, tried: Attempt, there: Bench | None = None) -> Verdict:
    """Return the Verdict on the answers `tried`; wrong shapes are reported first. `there`: a Bench with the cases."""
    places = (there or bench(exercise)).places
    answers = tuple(
        tuple(formed(exercise, one, wanted) for one, wanted in zip(answer, place.wanted, strict=True))
        for place, answer in zip(places, tried.answers, strict=False)
    )
    whole = answers if len(answers) == len(places) else ()
    form = _form(exercise, places, answers)
    if form:
        return Verdict(exercise, "wrong", form, whole, tried.printed, form)
    for place, given in zip(places, answers, strict=False):
        line = first_wrong(exercise, place, given)
        if line:
            return Verdict(exercise, "wrong", line, whole, tried.printed)
    if tried.problem:
        place = places[len(answers)]
        where = f" (case {place.case.id}: {described(place.problem)})" if answers else ""
        status: Status = "no answer" if tried.begun else "to do"
        line = f"{tried.problem}{of_error(tried.problem, sizes_of(exercise.arguments, place))}{where}"
        return Verdict(exercise, status, line, answers, tried.printed)
    return Verdict(exercise, "right", f"equal within the float64 bound in {len(places)} cases", whole, tried.printed)


def formed(exercise: StepExercise, array: NDArray, wanted: NDArray) -> NDArray:
    """Return `array`, broadcast to the shape of `wanted` if the exercise accepts arrays that broadcast to it."""
    if exercise.broadcasts and array.shape != wanted.shape:
        try:
            return np.broadcast_to(array, wanted.shape)
        except ValueError:
            pass
    return array


def _form(exercise: StepExercise, places: Sequence[Place], answers: Sequence[tuple[NDArray, ...]]) -> str:
    """What is wrong with the order, the shapes or the dtypes of what was returned; "" if nothing is."""
    for number, name in enumerate(exercise.names):
        compared = [
            (answer[number], place.wanted[number], place.allowed[number], place)
            for place, answer in zip(places, answers, strict=False)
        ]
        shapes = [(made, wanted, allowed) for made, wanted, allowed, _ in compared if made.shape != wanted.shape]
        dtypes = [(made, wanted) for made, wanted, *_ in compared if made.dtype != wanted.dtype]
        for made, wanted, _, place in compared:
            case = f"(case {place.case.id}: {described(place.problem)})"
            if made.shape != wanted.shape:
                given = answers[places.index(place)]
                order = of_order(exercise.names, given, place.wanted, place.allowed)
                return f"{order or f'{name} {of_shape(shapes, broadcasts=exercise.broadcasts)}'} {case}"
            if made.dtype != wanted.dtype and not shapes:
                return f"{name} {of_dtype(*dtypes[0])} {case}"
    return ""


def first_wrong(exercise: StepExercise, place: Place, answer: Sequence[NDArray]) -> str:
    """Return a sentence on the first wrong element: its index, its value and the right value; "" if none is wrong."""
    for name, array, wanted, allowed in zip(exercise.names, answer, place.wanted, place.allowed, strict=True):
        if array.shape != wanted.shape:
            return f"{name} {of_shape([(array, wanted, allowed)])}"
        indices = _wrong(array, wanted, allowed)
        if len(indices):
            index = tuple(int(i) for i in indices[0])
            got, right = (_number(one[index]) for one in (array, wanted))
            if got == right:
                got, right = (f"{one[index]:.17g}" for one in (array, wanted))
            return (
                f"{name}{at(index)} is {got}, expected {right}; {len(indices)} of {wanted.size} differ "
                f"(case {place.case.id}: {described(place.problem)})"
            )
    return ""


def first_wrong_row(place: Place, answer: Sequence[NDArray]) -> tuple[int, ...]:
    """Return the index of the first row with a wrong element; () if there is no such row, or a shape is wrong."""
    for array, wanted, allowed in zip(answer, place.wanted, place.allowed, strict=True):
        if array.shape != wanted.shape:
            return ()
        indices = _wrong(array, wanted, allowed)
        if len(indices):
            return tuple(int(i) for i in indices[0][:-1])
    return ()


def _wrong(array: NDArray, wanted: NDArray, allowed: NDArray) -> NDArray:
    """The indices of all elements that are too far off; those that are NaN come first."""
    indices = np.argwhere(distance(array, wanted) > allowed)
    return indices[np.argsort(~np.isnan(array[tuple(indices.T)]), kind="stable")]


def _number(value: np.generic) -> str:
    """An element as short as it can be read.

    >>> _number(np.float64(1) / 3), _number(np.bool_(True))
    ('0.33333333', 'True')
    """
    return f"{value:.8g}" if isinstance(value, np.floating) else str(value)


# The others --------------------------------------------------------------------------------------------


def _judge_catch(exercise: CatchExercise, path: str, time_limit: float) -> Verdict:
    found: Chosen = ask(exercise.dialect, time_limit, chosen, path)
    if found.problem is None:
        return Verdict(exercise, "no answer" if found.begun else "to do", found.reason, printed=found.printed)
    is_right, line = caught(found.problem, exercise.bug, exercise.target)
    return Verdict(exercise, "right" if is_right else "wrong", line, printed=found.printed)


def _judge_layer(exercise: LayerExercise, path: str, time_limit: float) -> Verdict:
    found: Layered = judged(exercise.dialect, path, exercise.subject, exercise.name, time_limit)
    if found.reason:
        return Verdict(exercise, "no answer", found.reason, printed=found.printed)
    if found.unkept:
        return Verdict(exercise, "wrong", found.unkept, printed=found.printed, why=found.unkept)
    result = found.result
    if result is None:
        left = f"; {found.unsupported} cases ask for things that this exercise leaves out" if found.unsupported else ""
        return Verdict(exercise, "right", f"equal to the reference in {found.right} cases{left}", printed=found.printed)
    case = next((case for case in (*all_cases(), *exercise.own) if case.id == result.case), None)
    problem = None if case is None else case.build()
    of_widths = f", {widths_of(problem)}" if problem and exercise.alone and widths_of(problem) else ""
    where = f"(case {result.case}{f': {described(problem)}{of_widths}' if problem else ''})"
    if result.status == "different":
        line = f"{result.mismatches[0].message} {where}"
        return Verdict(exercise, "wrong", line, printed=found.printed, case=result.case)
    to_do = "NotImplementedError" in (result.message or "")
    late = MORE_TIME if (result.message or "").startswith("no answer within") else ""
    why = late or (of_error(result.message or "", sizes_in(problem), exercise.dialect) if problem else "")
    line = f"{exercise.subject} is still to be written" if to_do else f"{result.message}{why} {where}"
    return Verdict(exercise, "to do" if to_do else "no answer", line, printed=found.printed)


def _judge_numbers(exercise: NumbersExercise, path: str, time_limit: float) -> Verdict:
    intervals = (*exercise.intervals, *exercise.drawn(_number_of(path)))
    calls = tuple(interval.arguments for interval in intervals)
    numbers, tried = ask(exercise.dialect, time_limit, measured, path, exercise.function, exercise.parameters, calls)
    for interval, number in zip(intervals, numbers, strict=False):
        if not interval.low <= number <= interval.high:
            asked = ", ".join(f"{n}={v}" for n, v in zip(exercise.parameters, interval.arguments, strict=True))
            lies = f"{interval.low:.4g} to {interval.high:.4g}"
            line = f"{exercise.function}({asked}) is {number:.4g}; it must lie in {lies}"
            why = "" if tried.problem else exercise.explained(numbers, intervals)
            return Verdict(exercise, "wrong", line, printed=tried.printed, why=why)
    if tried.problem:
        return Verdict(exercise, "no answer" if tried.begun else "to do", tried.problem, printed=tried.printed)
    shares = [2.0 * number / (one.low + one.high) for one, number in zip(intervals, numbers, strict=True)]
    for (a, one), (b, other) in combinations(zip(shares, intervals, strict=True), 2):
        if one.arguments[0] != other.arguments[0] and abs(a - b) <= SAME:
            sizes = f"{exercise.parameters[0]} {one.arguments[0]} and {other.arguments[0]}"
            line = (
                f"for {sizes} it is the same share of what is to be expected: a formula or a constant, nothing measured"
            )
            return Verdict(exercise, "wrong", line, printed=tried.printed)
    return Verdict(exercise, "right", f"all {len(numbers)} numbers lie where they must", printed=tried.printed)


def _judge_heads(exercise: HeadsExercise, path: str, time_limit: float) -> Verdict:
    from mha.learn.headwork import ENOUGH, KEPT, cut_calls, place, trained, wrong_cut, wrong_order

    calls = cut_calls() if exercise.kind == "cut" else tuple(one.arguments for one in trained())
    made, tried = ask(exercise.dialect, time_limit, returned, path, exercise.function, exercise.parameters, calls)
    if tried.problem:
        return Verdict(exercise, "no answer" if tried.begun else "to do", tried.problem, printed=tried.printed)
    if exercise.kind == "cut":
        wrong = next(filter(None, (wrong_cut(number, weights) for number, weights in enumerate(made))), "")
        line = wrong or f"equal to the masked layer, {len(KEPT)} times"
        return Verdict(exercise, "wrong" if wrong else "right", line, printed=tried.printed)
    heads = [one.measured.config.num_heads for one in trained()]
    for arrays, number in zip(made, heads, strict=True):
        scores = arrays.get("")
        if scores is None or scores.shape != (number,) or not np.isfinite(scores).all():
            line = f"it must return {number} finite numbers, one a head, in an array"
            return Verdict(exercise, "no answer", line, printed=tried.printed)
    found = place([arrays[""] for arrays in made])
    line = f"what is left by your order lies at {found:.2f}, where random orders are 0 and leaving each head out is 1"
    enough = found >= ENOUGH
    if not enough:
        why = wrong_order([arrays[""] for arrays in made])
        line += f"; {ENOUGH:g} is enough{f'; {why}' if why else ''}"
    return Verdict(exercise, "right" if enough else "wrong", line, printed=tried.printed)
