"""Axes: another order of one axis, as a rule for every length: index i of the result reads index rule(i, n)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.sample import Change, Setting
from conformance.zoo.bug import DoesNotApply

Rule = Callable[[int], NDArray[np.int64]]
"""Length n -> the index that each of n places reads; -1 reads a 0. It raises DoesNotApply for other lengths."""


def _even(n: int) -> None:
    if n % 2:
        raise DoesNotApply("an odd length has no halves")


def _halves(n: int) -> NDArray[np.int64]:
    _even(n)
    return np.roll(np.arange(n), n // 2)


def _pairs(n: int) -> NDArray[np.int64]:
    _even(n)
    return np.arange(n) ^ 1


def _swapped(first: int, second: int) -> Rule:
    def rule(n: int) -> NDArray[np.int64]:
        order = np.arange(n)
        if n > 1:
            order[[first, second]] = order[[second, first]]
        return order

    return rule


def _shifted(by: int) -> Rule:
    def rule(n: int) -> NDArray[np.int64]:
        order = np.arange(n) + by
        return np.where((order < 0) | (order >= n), -1, order)

    return rule


def _rolled(by: int) -> Rule:
    return lambda n: np.roll(np.arange(n), by)


def _clamped(by: int) -> Rule:
    return lambda n: np.clip(np.arange(n) + by, 0, n - 1)


def _evens_first(n: int) -> NDArray[np.int64]:
    return np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)])


RULES: dict[str, tuple[str, Rule]] = {
    "reversed": ("in reverse order", lambda n: np.arange(n)[::-1]),
    **{f"rolled-{by:+d}": (f"rolled by {by:+d}", _rolled(by)) for by in (1, -1, 2, -2, 3, -3)},
    "halves-exchanged": ("with the halves exchanged", _halves),
    "neighbours-exchanged": ("with neighbours 0 and 1, 2 and 3, ... exchanged", _pairs),
    "first-two-exchanged": ("with 0 and 1 exchanged", _swapped(0, 1)),
    "last-two-exchanged": ("with the last two exchanged", _swapped(-1, -2)),
    "ends-exchanged": ("with the first and the last exchanged", _swapped(0, -1)),
    "all-first": ("the first one everywhere", lambda n: np.zeros(n, np.int64)),
    "all-last": ("the last one everywhere", lambda n: np.full(n, n - 1)),
    **{f"shifted-{by:+d}": (f"shifted by {by:+d}, 0 at the end", _shifted(by)) for by in (1, -1)},
    **{f"clamped-{by:+d}": (f"shifted by {by:+d}, the end repeated", _clamped(by)) for by in (1, -1)},
    "evens-first": ("evens first, then odds", _evens_first),
    "evens-first-undone": (
        "the first half at even places, the second at odd ones",
        lambda n: np.argsort(_evens_first(n)),
    ),
}
"""Name -> (words, rule)."""


def axis_changes(axes: tuple[str, ...]) -> Iterator[Change]:
    """Each rule on each axis."""
    for position, axis in enumerate(axes):
        for name, (words, rule) in RULES.items():
            slug = f"{axis.replace(' ', '-')}-{name}"
            yield Change(slug, f"with its {axis} axis {words}", _on(position - len(axes), rule))


def _on(axis: int, rule: Rule) -> Callable[[NDArray, tuple[str, ...], Setting], NDArray]:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        return taken(array, rule(array.shape[axis]), axis)

    return apply


def taken(array: NDArray, order: NDArray[np.int64], axis: int) -> NDArray:
    """`array` with index order[i] at place i of an axis, and 0 where that is -1."""
    found = np.take(array, np.maximum(order, 0), axis=axis)
    shape = [1] * array.ndim
    shape[axis] = -1
    return np.where((order < 0).reshape(shape), 0.0, found)
