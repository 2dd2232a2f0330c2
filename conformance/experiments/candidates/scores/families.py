"""Families of faults with one number: an array at some place of the pipeline with so much of something in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.scores.places import Place
from conformance.experiments.changes.axes import RULES, taken
from conformance.experiments.changes.sample import Setting
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.state import State

Number = Callable[[State], float]
Apply = Callable[[State, NDArray, float], NDArray]
Part = Callable[[State, NDArray], NDArray]


def no_detail(number: float, setting: Setting) -> str:
    """Nothing to say besides."""
    return ""


@dataclass(frozen=True, eq=False)
class Family:
    """Faults that differ in one number.

    Args:
        place: where they are.
        slug: the family's name.
        apply: (state, array, number) -> the array.
        words: of the array, with {} for the number; they follow "NAME are ".
        neutral: the number at which nothing is changed, if there is one.
        starts: numbers from which the one that fits is looked for.
        even: whether the negative of a number does the same; then the positive one is meant.
        detail: (number, sizes where it was measured) -> what a sentence says besides, after a colon.
    """

    place: Place
    slug: str
    apply: Apply
    words: str
    neutral: float | None = 0.0
    starts: tuple[float, ...] = ()
    even: bool = False
    detail: Callable[[float, Setting], str] = no_detail

    @property
    def begin(self) -> tuple[float, ...]:
        if self.starts:
            return self.starts
        return (0.0 if self.neutral is None else self.neutral,)

    def bug(self, number: Number, told: str, detail: str = "") -> Bug:
        """The member with a number, which may depend on sizes, and `told` in words."""

        def change(state: State, array: NDArray) -> NDArray:
            if array is None or array.ndim != len(self.place.axes):
                raise DoesNotApply("the array has other axes here")
            return self.apply(state, array, number(state))

        return self.place.bug(f"{self.slug}-{told.replace(' ', '')}", change, self.words.format(told) + detail)

    def at(self, number: float) -> Bug:
        return self.bug(lambda state: number, f"{number!r}")


def plus(place: Place, slug: str, part: Part, words: str) -> Family:
    """So much of `part(state, array)` is added."""
    return Family(
        place,
        f"plus-{slug}",
        lambda state, array, number: array + number * fitting(part(state, array), array),
        f"the definition's plus {{}} times {words}",
    )


def mixed(place: Place, slug: str, part: Part, words: str) -> Family:
    """(1 - number) of the array, and so much of another."""

    def apply(state: State, array: NDArray, number: float) -> NDArray:
        return array + number * (fitting(part(state, array), array) - array)

    return Family(place, f"mixed-{slug}", apply, f"a mix of the definition's and of {{}} times {words}")


def times_where(place: Place, slug: str, mask: Part, words: str) -> Family:
    """The array times a number where `mask(state, array)` is 1."""

    def apply(state: State, array: NDArray, number: float) -> NDArray:
        return array + (number - 1.0) * mask(state, array) * array

    return Family(place, f"times-{slug}", apply, f"the definition's times {{}}{words}", neutral=1.0)


def fitting(part: NDArray, array: NDArray) -> NDArray:
    try:
        return np.broadcast_to(part, array.shape)
    except ValueError as error:
        raise DoesNotApply(f"{part.shape} is not {array.shape}") from error


COPIED = (
    "reversed",
    "rolled-+1",
    "rolled--1",
    "shifted-+1",
    "shifted--1",
    "clamped-+1",
    "clamped--1",
    "all-first",
    "all-last",
    "neighbours-exchanged",
)


def _index(position: int, index: int) -> Part:
    """1 at one index of an axis, else 0; none of it where the axis is shorter."""

    def mask(state: State, array: NDArray) -> NDArray:
        n = array.shape[position]
        found = np.zeros([n if axis == position else 1 for axis in range(array.ndim)])
        if -n <= index < n:
            found[tuple(index if axis == position else 0 for axis in range(array.ndim))] = 1.0
        return found

    return mask


def _where(position: int, rule: Callable[[NDArray, int], NDArray]) -> Part:
    def mask(state: State, array: NDArray) -> NDArray:
        n = array.shape[position]
        shape = [n if axis == position else 1 for axis in range(array.ndim)]
        return np.asarray(rule(np.arange(n), n), np.float64).reshape(shape)

    return mask


def _copy(position: int, rule: str) -> Part:
    return lambda state, array: taken(array, RULES[rule][1](array.shape[position]), position)


def _mean(position: int) -> Part:
    return lambda state, array: array.mean(axis=position, keepdims=True)


PARTS: dict[str, tuple[str, Callable[[NDArray, int], NDArray]]] = {
    "even": ("even {}s", lambda index, n: index % 2 == 0),
    "odd": ("odd {}s", lambda index, n: index % 2),
    "second-half": ("the second half of the {}s", lambda index, n: index >= (n + 1) // 2),
    "first-half": ("the first half of the {}s", lambda index, n: index < n // 2),
    "ramp": ("each {}, times its index", lambda index, n: index),
    "ramp-to-1": ("each {}, times its index over their number", lambda index, n: index / n),
    "every-fourth": ("every fourth {}", lambda index, n: index % 4 == 3),
}


def by_index(place: Place, position: int, axis: str) -> Family:
    """The array times a power of an index + 1."""

    def apply(state: State, array: NDArray, power: float) -> NDArray:
        n = array.shape[position]
        shape = [n if axis == position else 1 for axis in range(array.ndim)]
        return array * ((np.arange(n) + 1.0) ** power).reshape(shape)

    return Family(
        place,
        f"times-power-of-{axis.replace(' ', '-')}",
        apply,
        f"the definition's times the power {{}} of 1 + the number of the {axis}",
        neutral=None,
        starts=(-1.0, 1.0, -0.4),
    )


def factor(place: Place) -> Family:
    """The whole array times a number."""
    family = times_where(place, "all", lambda state, array: np.ones(1), "")
    return replace(family, detail=_absolute) if place.step == "similarity" else family


def _absolute(number: float, setting: Setting) -> str:
    scale = setting.config.softmax_scale
    return f": queries @ keys^T is multiplied by {number * scale:.4g} where {scale:.4g} was expected"


def linear(place: Place) -> Iterator[Family]:
    """Those that are linear in the number: parts, neighbours, means, at every axis of a place of its own."""
    yield plus(place, "constant", lambda state, array: np.ones(1), "1")
    for position, axis in enumerate(place.axes):
        if axis not in place.own:
            continue
        slug = axis.replace(" ", "-")
        for index, name in ((0, "0"), (1, "1"), (2, "2"), (-1, "last")):
            what = f"{axis} 0" if not index else f"the last {axis}" if index < 0 else f"{axis} {index}"
            yield times_where(place, f"{slug}-{name}", _index(position, index), f" at {what}")
            yield plus(place, f"{slug}-{name}", _index(position, index), f"1 at {what}")
        for name, (words, rule) in PARTS.items():
            yield times_where(place, f"{slug}-{name}", _where(position, rule), f" at {words.format(axis)}")
            yield plus(place, f"{slug}-{name}", _where(position, rule), f"1 at {words.format(axis)}")
        # What is the same for all keys of a row cancels in the softmax: a mix with it would be a factor in other words.
        cancels = axis == "key" or (axis == "position" and place.step in ("key_inputs", "new_keys"))
        yield by_index(place, position, axis)
        for rule_name in COPIED:
            if cancels and rule_name.startswith("all-"):
                continue
            words = f"the same with its {axis} axis {RULES[rule_name][0]}"
            yield mixed(place, f"{slug}-{rule_name}", _copy(position, rule_name), words)
            yield plus(place, f"{slug}-{rule_name}", _copy(position, rule_name), words)
        if not cancels:
            yield plus(place, f"{slug}-mean", _mean(position), f"its mean over the {axis}s")
            yield mixed(place, f"{slug}-mean", _mean(position), f"its mean over the {axis}s")
