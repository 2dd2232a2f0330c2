"""How wrong numbers lie to the right ones, where no mistake of the zoo explains them, in sentences true of all cases.

`relation` explains every number; `location` says at least where they are wrong. Both compare arrays and guess no cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

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
    """What was returned under one name in one case, and what is right."""

    value: Value
    place: Place
    made: NDArray
    right: NDArray
    wrong: NDArray

    @cached_property
    def named(self) -> dict[str, object]:
        """The arguments by name."""
        return dict(zip((one.name for one in self.arguments), self.place.arguments, strict=True))

    arguments: tuple[Value, ...] = ()

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters of its axes, such as ("B", "H", "Lq", "Lk")."""
        return letters_of(self.value, self.right.ndim)

    @property
    def is_number(self) -> bool:
        """Whether it is a number wherever the right one is: NaN is equal to NaN, and no relation is told of that."""
        return self.made.dtype == bool or not (np.isnan(self.made) & ~np.isnan(self.right)).any()

    def sizes(self) -> dict[str, int]:
        """Letter -> size, of every array that the exercise names."""
        found = sizes_of(self.arguments, self.place) | dict(zip(self.letters, self.right.shape, strict=True))
        return {letter: size for letter, size in found.items() if letter.isalpha() and size > 1}

    def is_near(self, other: NDArray) -> bool:
        """Whether what was returned is this."""
        if other.dtype == bool or self.made.dtype == bool:
            return bool((self.made == other).all())
        scale = np.abs(self.right[np.isfinite(self.right)]).max(initial=0.0)
        return bool((distance(self.made, other) <= NEAR * scale).all())


def _pairs(exercise: StepExercise, answers: Sequence[Sequence[NDArray]]) -> list[Pair]:
    """Those of one name, the first that is wrong somewhere; none where a case has no answer."""
    places = bench(exercise).places
    if len(answers) != len(places):
        return []
    for number, value in enumerate(exercise.returned):
        found = []
        for place, answer in zip(places, answers, strict=True):
            made, right, allowed = answer[number], place.wanted[number], place.allowed[number]
            if made.shape != right.shape:
                return []
            wrong = distance(made, right) > allowed
            found.append(Pair(value, place, made, right, wrong, exercise.arguments))
        if any(pair.wrong.any() for pair in found):
            return found
    return []


def relation(exercise: StepExercise, answers: Sequence[Sequence[NDArray]]) -> str:
    """A sentence on all that was returned, such as "It is the right one times 1 / (B * L)."; "" if none is true."""
    with any_numbers:
        pairs = _pairs(exercise, answers)
        name = pairs[0].value.name if pairs else ""
        of_numbers = (_multiple, _function, _along, _sums, _as_float32)
        tellers = of_numbers if all(pair.is_number for pair in pairs) else (_all_nan,)
        calls = _calls(pairs) if pairs else ""
        pairs = [pair for pair in pairs if pair.wrong.any()] if calls else pairs
        where, rest = (f"where {calls}, ", "; every other call is right") if calls else ("", "")
        return next((f"{name}: {where}{said}{rest}." for teller in tellers if pairs and (said := teller(pairs))), "")


def _all_nan(pairs: Sequence[Pair]) -> str:
    where = [pair for pair in pairs if pair.wrong.any()]
    if all(np.isnan(pair.made).all() for pair in where) and not any(np.isnan(pair.right).any() for pair in where):
        return "every number is NaN where one is wrong, as after 0 * inf, inf - inf or 0 / 0"
    return ""


def _multiple(pairs: Sequence[Pair]) -> str:
    """A multiple of the right one: by one number, or by one that the sizes of a case give."""
    factors = _factors(pairs)
    if not factors:
        return ""
    if np.allclose(factors, factors[0], rtol=NEAR):
        by = f"times {factors[0]:.6g}" if factors[0] != -1 else "with the other sign"
        return f"it is the right one {by}"
    for words, number in of_sizes(list(pairs[0].sizes())):
        if np.allclose(factors, [number(pair.sizes()) for pair in pairs if pair.right.any()], rtol=NEAR):
            return f"it is the right one times {words}"
    return ""


def _any_multiple(pairs: Sequence[Pair]) -> str:
    """A multiple of the right one, by a number of its own in each case."""
    cases = [pair.place.case.id for pair in pairs if pair.right.any()]
    shown = ", ".join(f"{factor:.4g} in case {id}" for factor, id in zip(_factors(pairs), cases, strict=False))
    return f"it is the right one times a number: {shown}" if shown else ""


def _factors(pairs: Sequence[Pair]) -> list[float]:
    """By what the right ones are multiplied, in cases in which they are not all 0; [] if they are not multiplied."""
    factors = []
    for pair in pairs:
        top = np.unravel_index(np.argmax(np.abs(np.nan_to_num(pair.right))), pair.right.shape)
        factor = float(pair.made[top] / pair.right[top]) if pair.right.any() else 1.0
        if pair.right.dtype == bool or not np.isfinite(factor) or not pair.is_near(factor * pair.right):
            return []
        factors += [factor] if pair.right.any() else []
    return factors


def _function(pairs: Sequence[Pair]) -> str:
    if pairs[0].right.dtype == bool:
        return "True and False are exchanged" if all(pair.is_near(~pair.right) for pair in pairs) else ""
    functions: dict[str, Callable[[NDArray], NDArray]] = {
        "negative numbers are 0": lambda x: np.maximum(x, 0.0),
        "positive numbers are 0": lambda x: np.minimum(x, 0.0),
        "it has no signs": np.abs,
        "it is the square of the right one": np.square,
        "it is the inverse of the right one: 1 / x": lambda x: 1.0 / x,
        "it is all zeros": np.zeros_like,
        "it is the logarithm of the right one": np.log,
        "the largest number of each row is 1, and the others are 0": _one_hot,
        **{f"it is rounded to {n} decimals": lambda x, n=n: np.round(x, n) for n in range(9)},  # type: ignore[misc]  # mypy cannot infer a default
    }
    return next((words for words, f in functions.items() if all(pair.is_near(f(pair.right)) for pair in pairs)), "")


def _one_hot(x: NDArray) -> NDArray:
    return np.asarray(x == x.max(-1, keepdims=True), dtype=np.float64) if x.ndim else x


def _row_multiples(pairs: Sequence[Pair]) -> str:
    """Each row is a multiple of the right one, by a number of its own."""
    for pair in pairs:
        if pair.right.dtype == bool or not pair.right.ndim or pair.right.shape[-1] < 2:
            return ""
        top = np.argmax(np.abs(np.nan_to_num(pair.right)), axis=-1, keepdims=True)
        made, right = (np.take_along_axis(one, top, -1) for one in (pair.made, pair.right))
        factors = np.where(right == 0.0, 1.0, made / right)
        if not np.isfinite(factors).all() or not pair.is_near(factors * pair.right):
            return ""
    sums = all(np.allclose(pair.right.sum(-1), pair.right.any(-1)) for pair in pairs)
    return f"each row is the right one times a number of its own{': rows must sum to 1' if sums else ''}"


def _along(pairs: Sequence[Pair]) -> str:
    """The right numbers in other places of one axis."""
    changes: dict[str, Callable[[NDArray, int], NDArray]] = {
        "each {} has what stands at the other end: their order is reversed": np.flip,
        "each {} has what the first one must have": lambda x, axis: np.broadcast_to(x.take([0], axis), x.shape),
        "each {} has what the last one must have": lambda x, axis: np.broadcast_to(x.take([-1], axis), x.shape),
        "each {} has what the one before it must have": lambda x, axis: np.roll(x, 1, axis),
        "each {} has what the next one must have": lambda x, axis: np.roll(x, -1, axis),
        "each {} has the average over all": lambda x, axis: np.broadcast_to(x.mean(axis, keepdims=True), x.shape),
    }
    for axis in range(pairs[0].right.ndim):
        for words, change in changes.items():
            if all(pair.is_near(change(pair.right, axis)) for pair in pairs):
                return words.format(_thing(pairs[0], axis))
    return ""


def _sums(pairs: Sequence[Pair]) -> str:
    """Of weights: the axis over which they sum to 1, in place of the last."""
    if not all(np.allclose(pair.right.sum(-1), pair.right.any(-1)) for pair in pairs):
        return ""
    for axis in range(pairs[0].right.ndim - 1):
        sums = [np.nansum(pair.made, axis) for pair in pairs]  # NaN where the right ones are
        if all(np.allclose(one[one != 0.0], 1.0) and (one != 0.0).any() for one in sums):
            return f"weights sum to 1 over each {_thing(pairs[0], axis)}'s axis ({axis}), not over the keys"
    return ""


def _as_float32(pairs: Sequence[Pair]) -> str:
    off = []
    for pair in pairs:
        if pair.right.dtype == bool or (np.isfinite(pair.made) != np.isfinite(pair.right)).any():
            return ""
        scale = np.abs(pair.right[np.isfinite(pair.right)]).max(initial=0.0)
        off.append(float(np.nanmax(distance(pair.made, pair.right), initial=0.0) / (scale or 1.0)))
    if max(off) <= FLOAT32[1] and sorted(off)[len(off) // 2] >= FLOAT32[0]:
        return f"it is off by {max(off):.1g} of the largest number at most, as where something is computed in float32"
    return ""


def _thing(pair: Pair, axis: int) -> str:
    """What stands along an axis, in a word; an axis that may be anything is counted."""
    letter = pair.letters[axis]
    return f"index of axis {letter}" if letter.isdigit() else AXES.get(letter, "channel")


# Where --------------------------------------------------------------------------------------------------


def location(exercise: StepExercise, answers: Sequence[Sequence[NDArray]]) -> str:
    """A sentence on where the wrong numbers are, in all cases; "" if none is true."""
    with any_numbers:
        pairs = _pairs(exercise, answers)
        name = pairs[0].value.name if pairs else ""
        tellers = (
            (_any_multiple, _row_multiples, _in_calls, _in_places, _in_direction, _in_pairs, _in_index) if pairs else ()
        )
        return next((f"{name}: {said}." for teller in tellers if (said := teller(pairs))), "")


def _in_calls(pairs: Sequence[Pair]) -> str:
    calls = _calls(pairs)
    return f"it is wrong where {calls}, and right in every other case" if calls else ""


def _calls(pairs: Sequence[Pair]) -> str:
    """The calls in which alone it is wrong, by what an argument is, such as "scale is None"."""
    kinds: dict[str, Callable[[object], bool]] = {
        "is None": lambda x: x is None,
        "is given": lambda x: x is not None,
        "is 0": lambda x: isinstance(x, (int, float)) and x == 0,
        "has two axes": lambda x: isinstance(x, np.ndarray) and x.ndim == 2,
        "is not the same for all": lambda x: isinstance(x, np.ndarray) and x.ndim == 1 and bool((x != x[0]).any()),
    }
    names = {value for pair in pairs for value in pair.named.values() if isinstance(value, str)}
    kinds |= {f"is {one!r}": partial(_is_word, one) for one in sorted(names)}
    wrong = [pair.wrong.any() for pair in pairs]
    for name in (argument.name for argument in pairs[0].arguments):
        for words, is_one in kinds.items():
            if wrong == [is_one(pair.named[name]) for pair in pairs] and not all(wrong):
                return f"{name} {words}"
    return ""


def _is_word(word: str, x: object) -> bool:
    return isinstance(x, str) and x == word


def _in_places(pairs: Sequence[Pair]) -> str:
    """In which rows or elements it is wrong, by what they are."""
    kinds: dict[str, Callable[[Pair], NDArray | None]] = {
        "rows without an allowed key": lambda one: _rows(one, ~np.asarray(one.named["allowed"]).any(-1, keepdims=True)),
        "masked keys": lambda one: _rows(one, ~np.asarray(one.named["allowed"])),
        "rows of weights that are all 0": lambda one: _rows(one, ~np.asarray(one.named["weights"]).any(-1)[..., None]),
        "padding": lambda one: _rows(one, np.asarray(one.named["padding"])[:, None, :, None]),
        "items or queries of length 0": lambda one: _rows(one, _lengths(one) == 0),
        "queries that stand before the first key or behind the last": lambda one: _rows(one, _outside(one)),
    }
    for words, places in kinds.items():
        try:
            there = [places(pair) for pair in pairs]
        except (KeyError, TypeError, ValueError):  # the exercise has no such thing
            continue
        if all(one is not None and not (pair.wrong & ~one).any() for pair, one in zip(pairs, there, strict=True)):
            return f"it is wrong only in {words}"
    return ""


def _rows(pair: Pair, places: NDArray) -> NDArray:
    return np.broadcast_to(places, pair.right.shape)


def _lengths(pair: Pair) -> NDArray:
    lengths = np.asarray(pair.named["valid_lens"])
    return lengths[:, None, None, None] if lengths.ndim == 1 else lengths[:, None, :, None]


def _outside(pair: Pair) -> NDArray:
    """Queries whose position is that of no key."""
    position = np.asarray(pair.named["offsets"])[:, None] + np.arange(pair.right.shape[2])
    return ((position < 0) | (position >= pair.right.shape[3]))[:, None, :, None]


def _in_direction(pairs: Sequence[Pair]) -> str:
    """Of masks: whether they let in too much, or too little."""
    if pairs[0].right.dtype != bool:
        return ""
    if not any((pair.right & ~pair.made).any() for pair in pairs):
        return "it lets in keys that it must exclude, and excludes none that it must let in"
    if not any((~pair.right & pair.made).any() for pair in pairs):
        return "it excludes keys that it must let in, and lets in none that it must exclude"
    return ""


def _in_pairs(pairs: Sequence[Pair]) -> str:
    """Of channels that turn in pairs: whether the first pair of them is right, and no other."""
    layouts: tuple[Callable[[NDArray, int], NDArray], ...] = (
        lambda c, width: c % (width // 2),
        lambda c, width: c // 2,
    )
    for pair_of in layouts:
        told = []
        for pair in pairs:
            width = pair.named.get("width")
            if not isinstance(width, int):
                return ""
            by_channel = pair.wrong.any(tuple(range(pair.wrong.ndim - 1)))
            first = pair_of(np.arange(width), width) == 0
            told.append(not by_channel[:width][first].any() and by_channel[:width][~first].all())
        if all(told):
            return "the first pair of channels is right, and every other one that turns is wrong"
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
        thing = _thing(pairs[0], axis)
        for which, index in (("first", 0), ("last", -1)):
            told = [(one[index], np.delete(one, index)) for one in by_index]
            if all(not one and others.all() for one, others in told):
                return f"the {which} {thing} is right, and every other one is wrong{limit}"
            if all(one and not others.any() for one, others in told):
                return f"the {which} {thing} is wrong, and every other one is right"
    return ""
