"""How wrong numbers lie to the right ones, where no known mistake explains them, in sentences true of all cases.

`relation` explains every number; `location` says at least where they are wrong. Both compare arrays and guess no cause.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from mha.learn.bench import Place, bench, distance
from mha.learn.exercise import StepExercise, Value
from mha.learn.words import letters_of, of_sizes, sizes_of

AXES = {"B": "batch item", "H": "head", "G": "key head", "Lq": "query", "Lk": "key", "L": "position"}
"""Letters of shapes -> what stands along such an axis; others are channels."""

NEAR = 1e-9
"""How near, relative to the largest number, a relation must come: a cause is told, and not a bound kept."""

FLOAT32 = (1e-10, 1e-6)
"""Relative differences that rounding to float32 makes."""


@dataclass(frozen=True)
class Pair:
    """An array that a learner's function returned in a case (`made`), the right array, and a mask of wrong elements."""

    value: Value
    arguments: tuple[Value, ...]
    place: Place
    made: NDArray
    right: NDArray
    wrong: NDArray

    @cached_property
    def named(self) -> dict[str, object]:
        """Return the arguments by name."""
        return dict(zip((one.name for one in self.arguments), self.place.arguments, strict=True))

    @property
    def is_bool(self) -> bool:
        """Return whether the array is a mask."""
        return bool(self.right.dtype == bool)

    @cached_property
    def scale(self) -> float:
        """Return the largest of the right numbers."""
        return float(np.abs(self.right[np.isfinite(self.right)]).max(initial=0.0))

    def sizes(self) -> dict[str, int]:
        """Return letter -> size ("L" -> 5) for axes longer than 1, of the array and of the function's arguments."""
        letters = letters_of(self.value, self.right.ndim)
        found = sizes_of(self.arguments, self.place) | dict(zip(letters, self.right.shape, strict=True))
        return {letter: size for letter, size in found.items() if letter.isalpha() and size > 1}

    def is_near(self, other: NDArray) -> bool:
        """Return whether the learner's array equals `other` but for rounding; a mask must equal it exactly."""
        if self.is_bool:
            return bool((self.made == other).all())
        return bool((distance(self.made, np.asarray(other)) <= NEAR * self.scale).all())

    def thing(self, axis: int) -> str:
        """Return the word for what an axis counts, such as "channel"; "index of axis 0" if the axis has no letter."""
        letter = letters_of(self.value, self.right.ndim)[axis]
        return f"index of axis {letter}" if letter.isdigit() else AXES.get(letter, "channel")


def _pairs(exercise: StepExercise, answers: Sequence[Sequence[NDArray]]) -> list[Pair]:
    """Those of one name, the first that is wrong somewhere; none where a case has no answer, or another shape."""
    places = bench(exercise).places
    if len(answers) != len(places):
        return []
    for number, value in enumerate(exercise.returned):
        found = []
        for place, answer in zip(places, answers, strict=True):
            made, right = answer[number], place.wanted[number]
            if made.shape != right.shape:
                return []
            wrong = distance(made, right) > place.allowed[number]
            found.append(Pair(value, exercise.arguments, place, made, right, wrong))
        if any(pair.wrong.any() for pair in found):
            return found
    return []


def relation(exercise: StepExercise, answers: Sequence[Sequence[NDArray]]) -> str:
    """Return in words how the learner's `answers` follow from the right ones in every case ("times 2"), or ""."""
    with any_numbers:
        pairs = _pairs(exercise, answers)
        if not pairs:
            return ""
        calls = _calls(pairs)
        wrong = [pair for pair in pairs if pair.wrong.any()] if calls else pairs
        lost = any((np.isnan(pair.made) & ~np.isnan(pair.right)).any() for pair in pairs if not pair.is_bool)
        tellers = (_all_nan,) if lost else (_multiple, _function, _along, _as_float32)
        said = next((said for teller in tellers if (said := teller(wrong))), "")
        where, rest = (f"where {calls}, ", "; every other call is right") if calls else ("", "")
        return f"{pairs[0].value.name}: {where}{said}{rest}." if said else ""


def _all_nan(pairs: Sequence[Pair]) -> str:
    where = [pair for pair in pairs if pair.wrong.any()]
    if all(np.isnan(pair.made).all() for pair in where) and not any(np.isnan(pair.right).any() for pair in where):
        return "every number is NaN where one is wrong, as after 0 * inf, inf - inf or 0 / 0"
    return ""


def _multiple(pairs: Sequence[Pair]) -> str:
    """A multiple of the right one: by one number, or by one that the sizes of a case give."""
    there = [pair for pair in pairs if pair.right.any()]
    factors = []
    for pair in there:
        top = np.unravel_index(np.argmax(np.abs(np.nan_to_num(pair.right))), pair.right.shape)
        factors.append(1.0 if pair.is_bool else float(pair.made[top] / pair.right[top]))
    multiples = zip(there, factors, strict=True)
    if not there or any(
        pair.is_bool or not np.isfinite(factor) or not pair.is_near(factor * pair.right) for pair, factor in multiples
    ):
        return ""
    if np.allclose(factors, factors[0], rtol=NEAR):
        by = f"times {factors[0]:.6g}" if factors[0] != -1 else "with the other sign"
        return f"it is the right one {by}"
    for words, number in of_sizes(list(pairs[0].sizes())):
        if np.allclose(factors, [number(pair.sizes()) for pair in there], rtol=NEAR):
            return f"it is the right one times {words}"
    return ""


FUNCTIONS: dict[str, Callable[[NDArray], NDArray]] = {
    "negative numbers are 0": lambda x: np.maximum(x, 0.0),
    "positive numbers are 0": lambda x: np.minimum(x, 0.0),
    "it has no signs": np.abs,
    "it is the square of the right one": np.square,
    "it is the inverse of the right one: 1 / x": lambda x: 1.0 / x,
    "it is all zeros": np.zeros_like,
    "it is the logarithm of the right one": np.log,
    "the largest number of each row is 1, and the others are 0": lambda x: np.asarray(
        x == x.max(-1, keepdims=True), np.float64
    ),
    **{f"it is rounded to {n} decimals": lambda x, n=n: np.round(x, n) for n in range(9)},  # type: ignore[misc]  # mypy cannot infer a default
}


def _function(pairs: Sequence[Pair]) -> str:
    if pairs[0].is_bool:
        return "True and False are exchanged" if all(pair.is_near(~pair.right) for pair in pairs) else ""
    if not pairs[0].right.ndim:
        return ""
    return next((words for words, f in FUNCTIONS.items() if all(pair.is_near(f(pair.right)) for pair in pairs)), "")


ALONG: dict[str, Callable[[NDArray, int], NDArray]] = {
    "each {} has what stands at the other end: their order is reversed": np.flip,
    "each {} has what the first one must have": lambda x, axis: np.broadcast_to(x.take([0], axis), x.shape),
    "each {} has what the last one must have": lambda x, axis: np.broadcast_to(x.take([-1], axis), x.shape),
    "each {} has what the one before it must have": lambda x, axis: np.roll(x, 1, axis),
    "each {} has what the next one must have": lambda x, axis: np.roll(x, -1, axis),
    "each {} has the average over all": lambda x, axis: np.broadcast_to(x.mean(axis, keepdims=True), x.shape),
}


def _along(pairs: Sequence[Pair]) -> str:
    """The right numbers in other places of one axis; or weights that sum to 1 along another axis than the keys'."""
    first = pairs[0]
    for axis in range(first.right.ndim):
        for words, change in ALONG.items():
            if all(pair.is_near(change(pair.right, axis)) for pair in pairs):
                return words.format(first.thing(axis))
    if not first.is_bool and all(np.allclose(pair.right.sum(-1), pair.right.any(-1)) for pair in pairs):
        for axis in range(first.right.ndim - 1):
            sums = [np.nansum(pair.made, axis) for pair in pairs]  # NaN where the right ones are
            if all(np.allclose(one[one != 0.0], 1.0) and (one != 0.0).any() for one in sums):
                return f"weights sum to 1 over each {first.thing(axis)}'s axis ({axis}), not over the keys"
    return ""


def _as_float32(pairs: Sequence[Pair]) -> str:
    off = []
    for pair in pairs:
        if pair.is_bool or (np.isfinite(pair.made) != np.isfinite(pair.right)).any():
            return ""
        off.append(float(np.nanmax(distance(pair.made, pair.right), initial=0.0) / (pair.scale or 1.0)))
    if max(off) <= FLOAT32[1] and sorted(off)[len(off) // 2] >= FLOAT32[0]:
        return f"it is as accurate as float32, off by {max(off):.1g} of the largest number at most: a step is float32"
    return ""


# Where --------------------------------------------------------------------------------------------------


def location(exercise: StepExercise, answers: Sequence[Sequence[NDArray]]) -> str:
    """Return a sentence that says for all cases where the wrong numbers are; "" if no sentence holds for all."""
    with any_numbers:
        pairs = _pairs(exercise, answers)
        tellers = (_in_calls, _in_places, _in_direction, _in_index) if pairs else ()
        return next((f"{pairs[0].value.name}: {said}." for teller in tellers if (said := teller(pairs))), "")


def _in_calls(pairs: Sequence[Pair]) -> str:
    calls = _calls(pairs)
    return f"it is wrong where {calls}, and right in every other case" if calls else ""


CALLS: dict[str, Callable[[object], bool]] = {
    "is None": lambda x: x is None,
    "is given": lambda x: x is not None,
    "is 0": lambda x: isinstance(x, (int, float)) and x == 0,
    "has two axes": lambda x: isinstance(x, np.ndarray) and x.ndim == 2,
    "is not the same for all": lambda x: isinstance(x, np.ndarray) and x.ndim == 1 and bool((x != x[0]).any()),
}
"""What an argument is, in words."""


def _calls(pairs: Sequence[Pair]) -> str:
    """The calls in which alone it is wrong, by what an argument is, such as "scale is None"."""
    wrong = [bool(pair.wrong.any()) for pair in pairs]
    for name in (argument.name for argument in pairs[0].arguments) if not all(wrong) else ():
        given = [pair.named[name] for pair in pairs]
        kinds = {words: [is_one(one) for one in given] for words, is_one in CALLS.items()}
        kinds |= {f"is {word!r}": [one == word for one in given] for word in given if isinstance(word, str)}
        for words, there in kinds.items():
            if wrong == there:
                return f"{name} {words}"
    return ""


PLACES: dict[str, Callable[[Pair], NDArray]] = {
    "rows without an allowed key": lambda one: ~np.asarray(one.named["allowed"]).any(-1, keepdims=True),
    "masked keys": lambda one: ~np.asarray(one.named["allowed"]),
    "rows of weights that are all 0": lambda one: ~np.asarray(one.named["weights"]).any(-1)[..., None],
    "padding": lambda one: np.asarray(one.named["padding"])[:, None, :, None],
}
"""Rows or elements, by what they are."""


def _in_places(pairs: Sequence[Pair]) -> str:
    for words, places in PLACES.items():
        try:
            there = [np.broadcast_to(places(pair), pair.right.shape) for pair in pairs]
        except (KeyError, ValueError):  # the exercise has no such thing
            continue
        if not any((pair.wrong & ~one).any() for pair, one in zip(pairs, there, strict=True)):
            return f"it is wrong only in {words}"
    return ""


def _in_direction(pairs: Sequence[Pair]) -> str:
    """Of masks: whether they let in too much, or too little."""
    if not pairs[0].is_bool:
        return ""
    if not any((pair.right & ~pair.made).any() for pair in pairs):
        return "it lets in keys that it must exclude, and excludes none that it must let in"
    if not any((~pair.right & pair.made).any() for pair in pairs):
        return "it excludes keys that it must let in, and lets in none that it must exclude"
    return ""


def _in_index(pairs: Sequence[Pair]) -> str:
    """The first along an axis is right and all others are not, or the other way round; and so the last."""
    where = [pair for pair in pairs if pair.wrong.any()]
    limit = "" if len(where) == len(pairs) else " where anything is wrong"
    for axis in range(pairs[0].right.ndim):
        others = tuple(other for other in range(pairs[0].right.ndim) if other != axis)
        if any(pair.right.shape[axis] == 1 for pair in where):
            continue
        by_index = [pair.wrong.any(others) for pair in where]
        thing = pairs[0].thing(axis)
        for which, index in (("first", 0), ("last", -1)):
            told = [(one[index], np.delete(one, index)) for one in by_index]
            if all(not one and others.all() for one, others in told):
                return f"the {which} {thing} is right, and every other one is wrong{limit}"
            if all(one and not others.any() for one, others in told):
                return f"the {which} {thing} is wrong, and every other one is right"
    return _in_first(pairs)


def _in_first(pairs: Sequence[Pair]) -> str:
    """It is right at [0, 0], the first index of both axes in front, and wrong at all others."""
    by_both = [pair.wrong.any(-1).any(-1) for pair in pairs if pair.wrong.ndim == 4]
    others = [np.delete(one.ravel(), 0) for one in by_both]
    if by_both and len(by_both) == len(pairs) and all(one.all() for one in others) and any(map(len, others)):
        return "" if any(one[0, 0] for one in by_both) else "[0, 0] is right, and every other matrix is wrong"
    return ""
