"""Does the answer move? A learner's function is called again with one argument changed.

Where the right answer moves and the learner's stays, it does not depend on that argument: no mistake need be known.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from mha.learn.bench import Place, bench, distance
from mha.learn.exercise import StepExercise, Value
from mha.learn.tracks.own import right_function
from mha.learn.tracks.softmax import Candidate, filled

Answer: TypeAlias = tuple[NDArray, ...]
Run: TypeAlias = Callable[[Sequence[Place]], Sequence[Answer]]
"""Runs a learner's function on cases; answers stop at the first call that fails."""

SMALL, LARGER = 2.0**-36, 2.0**-18
"""Relative changes: float32 does not see the first and sees the second."""

FLOAT32 = "As accurate as float32: a step is float32;"

ROUNDING = 1e-14
"""What two equal calls of a framework may differ by, relative to the largest number."""

NEARLY = 1e-3
"""How far off float32 makes an answer at most, relative to the largest number: of angles of some thousand radians."""

SEEN = 0.1
"""The share of elements that may move though a step is float32: those that it rounds the other way."""

ALL, GIVEN, BELOW, BEYOND, ROUNDED, MOVED = "all", "given", "below", "beyond", "rounded", "moved"
"""What is changed of an argument: all of it; one that is given, not None; the numbers below 0; everything but the first
index of both axes in front; all of it by `SMALL`; all of it by `LARGER`.
"""


@dataclass(frozen=True)
class Change:
    """A test case of an exercise with one argument changed.

    Attributes:
        argument: the name of the argument.
        what: the numbers that change: "all"; a number other than None ("given"); those "below" 0; those "beyond" the
            first item and head; or all by a little, 2**-36 ("rounded") or 2**-18 ("moved") of their size.
        number: the index of the case among the exercise's cases.
        place: the case with the changed argument and the right answer to it.
    """

    argument: str
    what: str
    number: int
    place: Place


@cache
def changes(exercise: StepExercise) -> tuple[Change, ...]:
    """Return every Change (a case with one argument changed) that also changes the right answer."""
    right, found = right_function(exercise), []
    for number, place in enumerate(bench(exercise).places):
        for index, (value, given) in enumerate(zip(exercise.arguments, place.arguments, strict=True)):
            for what, other in _others(value, given):
                arguments = (*place.arguments[:index], other, *place.arguments[index + 1 :])
                wanted = _called(right, arguments)
                if wanted is not None and any(map(_moves, wanted, place.wanted, place.allowed)):
                    there = replace(place, arguments=arguments, wanted=wanted)
                    found.append(Change(value.name, what, number, there))
    return tuple(found)


def _called(right: Callable[..., Any], arguments: Sequence[Any]) -> Answer | None:
    try:
        with any_numbers:
            made = right(*arguments)
    except (IndexError, ValueError):  # such an argument does not fit the others
        return None
    return tuple(map(np.asarray, made if isinstance(made, tuple) else (made,)))


def _moves(array: NDArray, other: NDArray, allowed: NDArray) -> bool:
    if array.shape != other.shape:
        return False
    return bool((distance(array, other) > 2.0 * allowed).any())


def _others(value: Value, given: Any) -> Iterator[tuple[str, Any]]:
    """What is changed of an argument, and the argument with it changed."""
    if isinstance(given, np.ndarray):
        yield from _other_arrays(given)
    elif isinstance(given, (bool, np.bool_)):
        yield ALL, not given
    elif isinstance(given, str):
        yield from ((ALL, word) for word in re.findall(r'"(\w+)"', value.about) if word != given)
    elif given is None and re.match("(float|int)\\b(?!64)", value.about):
        yield ALL, 0.5 if value.about.startswith("float") else 1
    elif isinstance(given, int) and not re.match("int: [A-Z]", value.about):  # no size
        step = 2 if "even" in value.about else 1
        yield GIVEN, given - step if given > step else given + step
    elif isinstance(given, float):
        yield GIVEN, given * 1.5 + 0.25
        yield ROUNDED, given * (1.0 + SMALL)
        yield MOVED, given * (1.0 + LARGER)


def _other_arrays(given: NDArray) -> Iterator[tuple[str, NDArray]]:
    if given.dtype.kind == "i":
        yield ALL, np.where(given == 0, 1, given - 1)
        yield ALL, np.ascontiguousarray(given[..., ::-1])
        if (given < 0).any():
            yield BELOW, np.where(given < 0, given - 1, given)
        return
    for axis in range(-min(given.ndim, 2), 0):
        yield ALL, np.roll(given, 1, axis)
    if given.dtype == bool:  # other counts too
        yield ALL, given | (np.arange(given.size) % 3 == 0).reshape(given.shape)
    if given.ndim == 4 and given.dtype.kind == "f":
        other = np.roll(given, 1, -1)
        other[0, 0] = given[0, 0]
        yield BEYOND, other
    if given.dtype.kind == "f":
        signs = np.cos(np.arange(given.size)).reshape(given.shape)  # each element by another share: norms see it
        yield ALL, given * (1.0 + 0.5 * signs)  # other sums too
        yield ROUNDED, given * (1.0 + SMALL * signs)
        yield MOVED, given * (1.0 + LARGER * signs)


def unmoved(exercise: StepExercise, answers: Sequence[Answer], run: Run) -> tuple[str, ...]:
    """Return sentences on arguments that do not change the answer, or that the learner's function rounds to float32.

    Args:
        answers: what the learner's function returned in each case.
        run: a function that runs the learner's function on further cases.
    """
    asked = changes(exercise)
    if len(answers) != len(bench(exercise).places) or not asked:
        return ()
    made = run([one.place for one in asked])
    shares: dict[tuple[str, str], list[float]] = {}
    for change, answer in zip(asked, made, strict=False):
        before = answers[change.number]
        if not all(np.isnan(one).all() for one in before):  # anything may be its reason
            shares.setdefault((change.argument, change.what), []).append(_share(before, answer, change, exercise))
    if len(made) < len(asked):  # that which failed, and what comes after it, is not known
        missing = {(one.argument, one.what) for one in asked[len(made) :]}
        shares = {key: share for key, share in shares.items() if key not in missing}
    said = tuple(filter(None, (_of_argument(one.name, shares) for one in exercise.arguments)))
    rounded = [one.name for one in exercise.arguments if _is_rounded(one.name, shares)]
    rounded = rounded if _is_nearly_right(exercise, answers) else []
    return (*said, *([f"{FLOAT32} changed by 1e-11 of it, `{'` or `'.join(rounded)}` gives the same."] * bool(rounded)))


def _share(before: Answer, after: Answer, change: Change, exercise: StepExercise) -> float:
    """The share of the elements that should move and do."""
    right = bench(exercise).places[change.number]
    should = moved = 0
    for old, new, was, now, allowed in zip(
        before, after, right.wanted, change.place.wanted, right.allowed, strict=True
    ):
        if old.shape != new.shape or old.shape != was.shape:
            return 1.0
        there = distance(was, now) > allowed
        same = distance(old, new) <= ROUNDING * _largest(was)
        should += int(there.sum())
        moved += int((~same).sum())  # anywhere: it depends on the argument
    return moved / max(should, 1)


def _of_argument(name: str, shares: dict[tuple[str, str], list[float]]) -> str:
    """What one argument does to the answer, in a sentence; "" if it does what it should."""
    known = {what: shares[name, what] for what in (ALL, GIVEN, BELOW, BEYOND) if (name, what) in shares}
    still = {what for what, each in known.items() if not any(each)}
    whole = known.keys() & {ALL, GIVEN}
    if whole and whole <= still:
        return does_not_depend(name)
    if GIVEN in still:
        return f"Your answer asks whether `{name}` is None, and does not depend on its number."
    if BELOW in still:
        return f"Your answer does not depend on how far `{name}` lie below 0: one less gives the same."
    if BEYOND in still:
        return f"Of `{name}`, your answer depends on {name}[0, 0] alone: the rest of it may be anything."
    return ""


def does_not_depend(name: str) -> str:
    """Return the sentence that the answer does not depend on the values of the argument `name`."""
    return f"Your answer does not depend on `{name}`: with other values it is the same."


def _is_nearly_right(exercise: StepExercise, answers: Sequence[Answer]) -> bool:
    """Whether every number is off by no more than float32 makes it, of the largest in its case."""
    return all(
        one.shape == right.shape and bool((distance(one, right) <= NEARLY * _largest(right)).all())
        for answer, place in zip(answers, bench(exercise).places, strict=True)
        for one, right in zip(answer, place.wanted, strict=True)
    )


def _largest(array: NDArray) -> float:
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _is_rounded(name: str, shares: dict[tuple[str, str], list[float]]) -> bool:
    """Whether the answer sees a change of an argument that float32 sees, and none that it does not see."""
    small, larger = (shares.get((name, what), []) for what in (ROUNDED, MOVED))
    return bool(small and larger) and mean(small) < SEEN < 0.5 < mean(larger)


# What stands in place of minus infinity ------------------------------------------------------------------

SEEN_IN_FLOAT32 = 1e-37
"""A weight that is no 0 in float32: that of a score 85 below the largest."""

_WRITTEN = [
    *(float(f"{first}e{power}") for power in range(5, 308) for first in range(1, 10)),
    *(10.0**power - 1.0 for power in range(5, 16)),
    *(2.0**power for power in range(16, 1024)),
    *(float(np.finfo(kind).max) for kind in (np.float32, np.float64)),
]
SOUGHT = -np.unique([*range(0, 100_000, 125), *_WRITTEN])
"""Scores beside which a masked one is put: one of them is as large as what people write for minus infinity."""


def fills(exercise: StepExercise, run: Run) -> tuple[Candidate, ...]:
    """Return two pairs (sentence on a mistake, function with this mistake); () if the answers fit neither.

    A finite number replaces masked scores, or is added to them. The number is computed from the learner's answers.
    """
    if exercise.parameters != ("scores", "allowed") or exercise.covers != ("weights",):
        return ()
    first = bench(exercise).places[0]
    made = []
    for masked in (0.0, 1.0):
        scores = np.stack([SOUGHT, np.full_like(SOUGHT, masked)], -1)[None, None]
        allowed = np.broadcast_to([True, False], scores.shape).copy()
        answer = run([replace(first, arguments=(scores, allowed), wanted=(scores,))])
        if not answer or answer[0][0].shape != scores.shape:
            return ()
        with any_numbers:
            weights = answer[0][0][0, 0]
            between = (weights > SEEN_IN_FLOAT32).all(-1) & (weights < 1.0).all(-1)
            found = SOUGHT[between] + np.log(weights[between, 1] / weights[between, 0])
        if not found.size or not np.allclose(found, found[0], rtol=1e-6, atol=1e-4):
            return ()
        made.append(float(found[0]))
    number = float(f"{made[0]:.6g}") if abs(made[0]) < 1e5 else made[0]
    is_added = abs(made[1] - made[0] - 1.0) < 1e-3
    return tuple(filled(number, is_added=one) for one in (is_added, not is_added))
