"""Together: two changes one after the other. The first is read off in spite of the second, which is fitted to the rest.

An order of an axis shows in slices that are parallel, ranked alike, or of the same numbers; a factor in the ratio that
most elements share; a change of a part in the slices where nothing else differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.changes.axes import axis_changes, orders_read
from conformance.experiments.changes.elements.profiles import mode, profile_changes
from conformance.experiments.changes.elements.values import FUNCTIONS, change_of
from conformance.experiments.changes.expressions import expressions_of
from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.experiments.changes.shapes import shape_changes
from conformance.experiments.changes.where import part_changes
from conformance.zoo.bug import DoesNotApply

Finder = Callable[[Sequence[Sample]], list[Change]]

MOST_FIRSTS = 8
"""First changes that are followed by a second."""


def two_changes(samples: Sequence[Sample], singles: Finder, rest: Finder) -> Iterator[Change]:
    """Two changes, each found by itself; the caller verifies.

    Args:
        singles: finds changes of whole arrays.
        rest: finds changes of whole arrays or of parts.
    """
    done = 0
    for first in _firsts(samples):
        try:
            after = [sample.after(first.apply(sample.expected, sample.axes, sample.setting)) for sample in samples]
        except DoesNotApply:
            continue
        found = False
        for second in islice(rest(after), 3):
            found = True
            yield then(first, second)
        done += 1
        if found or done == MOST_FIRSTS:
            return
    yield from _of_parts(samples, singles, rest)


def then(first: Change, second: Change) -> Change:
    """One change, then another of its result."""

    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        return second.apply(first.apply(array, axes, setting), axes, setting)

    return Change(f"{first.slug}-then-{second.slug}", f"{first.words}, then {second.words}", apply)


EXPLAINED = 0.25
"""The least share of elements that a change without a number must give for it to be tried as the first of two."""


def _firsts(samples: Sequence[Sample]) -> Iterator[Change]:
    for how in ("scaled", "ranked", "alike", "subset"):
        yield from islice(orders_read(samples, how), 3)
    yield from _common(samples)
    yield from islice(profile_changes(samples, roughly=True), 3)
    yield from _explaining(samples)


def _explaining(samples: Sequence[Sample]) -> Iterator[Change]:
    """Changes without a number that give many elements of the largest sample."""
    largest = max((sample for sample in samples if sample.differs), key=lambda sample: sample.known.sum())
    told = largest.known & (np.abs(largest.measured) > largest.tolerance)
    if told.sum() < 4:
        return
    found: list[tuple[float, Change]] = []
    for change in plain_changes(largest.axes):
        try:
            made = change.apply(largest.expected, largest.axes, largest.setting)
        except DoesNotApply:
            continue
        if made.shape == largest.measured.shape:
            share = float((~largest.off(made) & told).sum() / told.sum())
            if share >= EXPLAINED:
                found.append((share, change))
    least = float((~largest.differing & told).sum() / told.sum())
    for share, change in sorted(found, key=lambda one: -one[0])[:3]:
        if share > least:
            yield change


@lru_cache(maxsize=64)
def plain_changes(axes: tuple[str, ...]) -> tuple[Change, ...]:
    """The changes without a number: orders, other shapes, functions."""
    functions = (change_of(name, words, function) for name, (words, function) in FUNCTIONS.items())
    return (*axis_changes(axes), *shape_changes(axes), *functions)


def _common(samples: Sequence[Sample]) -> Iterator[Change]:
    """The factor, and the summand, that most elements share."""
    for way in ("times", "plus"):
        numbers = []
        for sample in samples:
            x, y = sample.expected[sample.known], sample.measured[sample.known]
            with any_numbers:
                read = y / x if way == "times" else y - x
            number = mode(read[np.isfinite(read)])
            if number is None:
                break
            numbers.append((number, sample.setting))
        else:
            for expression in expressions_of(numbers, error=1e-8)[:2]:
                if expression.words in ("0", "1" if way == "times" else "0"):
                    continue
                yield Change(f"{way}-{expression.slug}", f"{way} {expression.words}", _all(way, expression.at))


def _all(way: str, number: Callable[[Setting], float]) -> Callable[[NDArray, tuple[str, ...], Setting], NDArray]:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        return array * number(setting) if way == "times" else array + number(setting)

    return apply


def _of_parts(samples: Sequence[Sample], singles: Finder, rest: Finder) -> Iterator[Change]:
    """Changes of two parts: the one is read where the other is not."""
    axes = samples[0].axes
    for axis in range(-len(axes), 0):
        outside = []
        some = False
        for sample in samples:
            others = tuple(k for k in range(-len(axes), 0) if k != axis)
            dense = (sample.differing | ~sample.known).all(axis=others, keepdims=True) & sample.known.any(
                axis=others, keepdims=True
            )
            some |= bool(dense.any())
            outside.append(sample.within(~dense))
        if not some or not any(sample.differs for sample in outside):
            continue
        for first in islice(part_changes(outside, singles), 4):
            try:
                after = [sample.after(first.apply(sample.expected, sample.axes, sample.setting)) for sample in samples]
            except DoesNotApply:
                continue
            found = rest(after)
            for second in found[:3]:
                yield then(first, second)
            if found:
                return
