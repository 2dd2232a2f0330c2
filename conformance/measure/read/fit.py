"""Fit: the changes that turn every sample's expected array into the measured one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.measure.grammar.expressions import Expression, expressions_of
from conformance.measure.grammar.functions import FUNCTIONS, function_changes
from conformance.measure.grammar.mixes import mix_changes, norm_changes, usual_norms
from conformance.measure.grammar.orders import order_changes
from conformance.measure.grammar.profiles import pattern_changes, profile_changes
from conformance.measure.grammar.roundings import rounding_changes
from conformance.measure.grammar.sample import Change, Sample, elementwise
from conformance.measure.grammar.shapes import shape_changes, split_changes
from conformance.measure.grammar.where import part_changes
from conformance.measure.read.orders import matrix_changes, orders_read
from conformance.zoo.bug import DoesNotApply

MOST = 12
"""Changes that are returned: more can't be told apart by these samples."""

KEPT = 256
"""Sets of samples whose changes are kept."""


def fit(samples: Sequence[Sample], *, thoroughly: bool = False) -> list[Change]:
    """Every known change that gives all measured arrays, and is none where nothing differs; the simplest first.

    Args:
        samples: at several sizes, and with generic numbers: else several changes fit.
        thoroughly: whether two changes, and what holds at the indices seen alone, are looked for as well.
    """
    if not any(sample.differs for sample in samples):
        return []
    # Those that differ first: nearly all candidates are dropped there.
    samples = sorted(samples, key=lambda sample: not sample.differs)
    with any_numbers:
        found = one_change(samples)
        if not found and thoroughly:
            found = (
                _verified(split_changes(samples, one_change), samples)
                or _verified(_two_changes(samples), samples)
                or _verified(_as_seen(samples), samples)
                or _verified(matrix_changes(samples), samples)
            )
    # Another order and a factor on top of it are two faults: what is blind to orders shows the factor.
    apart = [change for change in found if thoroughly or not _is_scaled_order(change)]
    return apart[:MOST]


def _is_scaled_order(change: Change) -> bool:
    return change.slug.startswith("0-of-it-") and change.words.startswith("with its")


def one_change(samples: Sequence[Sample]) -> list[Change]:
    """The changes of whole arrays or of one part that give all measured ones; the simplest first."""
    key = tuple(sample.content for sample in samples)
    if key not in _known:
        found = singles(samples)
        if not found or not all(sample.differs for sample in samples):
            found += _verified(part_changes(samples, singles), samples)
        _known[key] = found
        if len(_known) > KEPT:
            _known.popitem(last=False)
    return list(_known[key])


_known: OrderedDict[Hashable, list[Change]] = OrderedDict()
"""What was fitted last: models that differ elsewhere, and places that hold the same, read the same arrays."""


def singles(samples: Sequence[Sample]) -> list[Change]:
    """The changes of whole arrays that give all measured ones; the simplest first."""
    # Whatever reads only zeros gives zeros too.
    nothing = _verified((change for change in factors(samples) if change.slug == "times-0"), samples)
    return nothing or _verified(_candidates(samples), samples)


def _candidates(samples: Sequence[Sample]) -> Iterator[Change]:
    yield from factors(samples)
    yield from orders_read(samples)
    yield from function_changes(samples)
    yield from mix_changes(samples)
    yield from norm_changes(samples)
    yield from profile_changes(samples)
    yield from shape_changes(samples[0].axes)
    yield from rounding_changes(samples)


def _as_seen(samples: Sequence[Sample]) -> Iterator[Change]:
    """Orders and numbers without a rule, which hold for the lengths and indices that were seen."""
    yield from orders_read(samples, by_rule=False)
    yield from profile_changes(samples, by_rule=False)


def _verified(candidates: Iterable[Change], samples: Sequence[Sample]) -> list[Change]:
    found: dict[str, Change] = {}
    for change in candidates:
        if change.slug not in found and gives(change, samples):
            found[change.slug] = change
    return list(found.values())


def gives(change: Change, samples: Sequence[Sample]) -> bool:
    """Whether a change gives every sample's measured array; sizes at which it can't be made count for neither side."""
    made = 0
    for sample in samples:
        try:
            array = change.apply(sample.expected, sample.axes, sample.setting)
        except DoesNotApply:
            if sample.differs:
                return False
            continue
        if not sample.is_given_by(array):
            return False
        made += 1
    return made > 0


def factors(samples: Sequence[Sample]) -> Iterator[Change]:
    """The array times a number, which may depend on the sizes."""
    numbers, error = [], 0.0
    for sample in samples:
        known = sample.known
        expected, measured = sample.expected[known], sample.measured[known]
        square = float(expected @ expected)
        number = float(expected @ measured) / square if square else float("nan")
        if np.abs(number * expected).max(initial=0.0) <= sample.tolerance:
            number = 0.0
        numbers.append((number, sample.setting))
        with any_numbers:
            rest = np.abs(measured - number * expected).max(initial=0.0)
            error = max(error, 4.0 * rest / np.abs(measured).max(initial=0.0))
    unit = samples[0].unit
    known_error = min(error, 1000.0 * unit) if error == error else None
    yield from map(times, expressions_of(numbers, error=known_error, unit=unit))


def times(number: Expression) -> Change:
    """The array times a number."""
    words = {"-1": "negated", "0": "replaced by 0"}.get(number.words, f"times {number.words}")
    return Change(f"times-{number.slug}", words, lambda array, axes, setting: array * number.at(setting))


# Arrays that are known up to a number along an axis -------------------------------------------------------

Gauge = Callable[[NDArray, NDArray], tuple[NDArray, NDArray]]
"""(measured, expected), each up to a number that is the same along the last axis -> both, comparable."""


def _centred(array: NDArray) -> NDArray:
    found: NDArray = array - array.mean(axis=-1, keepdims=True)
    return found


GAUGES: tuple[Gauge, ...] = (
    lambda measured, expected: (_centred(measured), _centred(expected)),
    lambda measured, expected: (measured + (expected - measured).mean(axis=-1, keepdims=True), expected),
    lambda measured, expected: (measured + (expected - measured)[..., :1], expected),
    lambda measured, expected: (measured + (expected - measured)[..., -1:], expected),
)
"""What is not known may be: of no account (all along the axis change alike), or such that all along the axis are there,
in another order, or as it is where the axis begins or ends."""


def gauged(samples: Sequence[Sample], axis: int, *, thoroughly: bool = False) -> list[Change]:
    """The changes that some gauge shows, of arrays that are known up to a number along an axis."""
    found: dict[str, Change] = {}
    for gauge in GAUGES:
        moved = []
        for one in samples:
            m, e = gauge(np.moveaxis(one.measured, axis, -1), np.moveaxis(one.expected, axis, -1))
            moved.append(replace(one, measured=np.moveaxis(m, -1, axis), expected=np.moveaxis(e, -1, axis)))
        for change in fit(moved, thoroughly=thoroughly):
            found.setdefault(change.slug, change)
    for change in pattern_changes(samples) if axis in (-1, samples[0].expected.ndim - 1) else ():
        found.setdefault(change.slug, change)
    return list(found.values())[: 2 * MOST]


# Two changes ----------------------------------------------------------------------------------------------

EXPLAINED = 0.25
"""The least share of elements that a change must give for it to be tried as the first of two."""

MOST_FIRSTS = 8


def _two_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Two changes one after the other: the first is read off in spite of the second, which is fitted to the rest."""
    for first in islice(_firsts(samples), MOST_FIRSTS):
        try:
            after = [one.after(first.apply(one.expected, one.axes, one.setting)) for one in samples]
        except DoesNotApply:
            continue
        seconds = one_change(after)[:3] if any(one.differs for one in after) else []
        yield from (then(first, second) for second in seconds)
        if seconds:
            return


def then(first: Change, second: Change) -> Change:
    """One change, then another of its result."""
    return Change(
        f"{first.slug}-then-{second.slug}",
        f"{first.words}, then {second.words}",
        lambda array, axes, setting: second.apply(first.apply(array, axes, setting), axes, setting),
    )


def _firsts(samples: Sequence[Sample]) -> Iterator[Change]:
    for how in ("scaled", "ranked", "alike", "subset"):
        yield from islice(orders_read(samples, how), 3)
    yield from _common_factors(samples)
    yield from _of_most_elements(samples)


def _common_factors(samples: Sequence[Sample]) -> Iterator[Change]:
    """The factor that most elements share."""
    numbers = []
    for sample in samples:
        with any_numbers:
            ratios = sample.measured[sample.known] / sample.expected[sample.known]
        number = _mode(ratios[np.isfinite(ratios)])
        if number is None:
            return
        numbers.append((number, sample.setting))
    for expression in expressions_of(numbers, error=1e-8)[:2]:
        if expression.words not in ("0", "1"):
            yield times(expression)


def _mode(numbers: NDArray) -> float | None:
    """The number that at least a third of them are, within 1e-8; None if there is none."""
    if len(numbers) < 4:
        return None
    ordered = np.sort(numbers)
    width = max(2, int(np.ceil(0.3 * len(ordered))))
    spread = ordered[width - 1 :] - ordered[: len(ordered) - width + 1]
    place = int(spread.argmin())
    middle = float(ordered[place + width // 2])
    return middle if spread[place] <= 1e-8 * max(abs(middle), 1e-3) else None


def _of_most_elements(samples: Sequence[Sample]) -> Iterator[Change]:
    """Changes without a number that give many elements of the largest sample."""
    largest = max((sample for sample in samples if sample.differs), key=lambda sample: sample.known.sum())
    told = largest.known & (np.abs(largest.measured) > largest.tolerance)
    if told.sum() < 4:
        return
    least = max(EXPLAINED, float((~largest.differing & told).sum() / told.sum()))
    found: list[tuple[float, Change]] = []
    for change in plain_changes(largest.axes):
        try:
            made = change.apply(largest.expected, largest.axes, largest.setting)
        except DoesNotApply:
            continue
        if made.shape == largest.measured.shape:
            share = float((~largest.off(made) & told).sum() / told.sum())
            if share > least:
                found.append((share, change))
    yield from (change for _, change in sorted(found, key=lambda one: -one[0])[:3])


@lru_cache(maxsize=64)
def plain_changes(axes: tuple[str, ...]) -> tuple[Change, ...]:
    """The changes without a number: orders, other shapes, functions, norms."""
    functions = (elementwise(name, words, function) for name, (words, function) in FUNCTIONS.items())
    return (*order_changes(axes), *shape_changes(axes), *functions, *usual_norms(axes))
