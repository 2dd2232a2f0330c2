"""Fit: the changes that turn every sample's expected array into the measured one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.changes.axes import axis_changes, orders_read
from conformance.experiments.changes.elements.limits import limit_changes
from conformance.experiments.changes.elements.norms import norm_changes
from conformance.experiments.changes.elements.profiles import profile_changes
from conformance.experiments.changes.elements.roundings import rounding_changes
from conformance.experiments.changes.elements.values import value_changes
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.mixes import mix_changes
from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.experiments.changes.shapes import shape_changes, split_changes
from conformance.experiments.changes.together import two_changes
from conformance.experiments.changes.where import part_changes
from conformance.zoo.bug import DoesNotApply

MOST = 40
"""Changes that are returned: more can't be told apart by these samples."""


def fit(samples: Sequence[Sample]) -> list[Change]:
    """Every known change that gives all measured arrays, and is none where nothing differs; the simplest first.

    Args:
        samples: at several sizes, and with generic numbers: else several changes fit.
    """
    if not any(sample.differs for sample in samples):
        return []
    # Those that differ first: nearly all candidates are dropped there.
    samples = sorted(samples, key=lambda sample: not sample.differs)
    with any_numbers:
        found = (
            one_change(samples)
            or _verified(split_changes(samples, one_change), samples)
            or _verified(two_changes(samples, singles, one_change), samples)
            or _verified(_as_seen(samples), samples)
        )
    return found[:MOST]


def _as_seen(samples: Sequence[Sample]) -> Iterator[Change]:
    """Orders and factors without a rule, which hold for the lengths and indices that were seen."""
    yield from orders_read(samples, by_rule=False)
    yield from profile_changes(samples, by_rule=False)


def one_change(samples: Sequence[Sample]) -> list[Change]:
    """The changes of whole arrays or of one part that give all measured ones; the simplest first."""
    found = singles(samples)
    if not found or not all(sample.differs for sample in samples):
        found += _verified(part_changes(samples, singles), samples)
    return found


def singles(samples: Sequence[Sample]) -> list[Change]:
    """The changes of whole arrays that give all measured ones; the simplest first."""
    nothing = _verified((change for change in factors(samples) if change.slug == "times-0"), samples)
    # Whatever reads only zeros gives zeros too.
    return nothing or _verified(_candidates(samples), samples)


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


def _candidates(samples: Sequence[Sample]) -> Iterator[Change]:
    yield from factors(samples)
    yield from orders_read(samples)
    yield from value_changes(samples)
    yield from limit_changes(samples)
    yield from mix_changes(samples)
    yield from norm_changes(samples)
    yield from profile_changes(samples)
    yield from shape_changes(samples[0].axes)
    yield from rounding_changes(samples)


def factors(samples: Sequence[Sample]) -> Iterator[Change]:
    """The array times a number, which may depend on the sizes."""
    numbers, error = [], 0.0
    for sample in samples:
        number = ratio(sample)
        numbers.append((number, sample.setting))
        known = sample.known
        with any_numbers:
            rest = np.abs(sample.measured[known] - number * sample.expected[known]).max(initial=0.0)
            error = max(error, 4.0 * rest / np.abs(sample.measured[known]).max(initial=0.0))
    unit = samples[0].unit
    for expression in expressions_of(numbers, error=min(error, 1000.0 * unit) if error == error else None, unit=unit):
        words = {"-1": "negated", "0": "replaced by 0"}.get(expression.words, f"times {expression.words}")
        yield Change(f"times-{expression.slug}", words, _times(expression))


def _times(expression: Expression) -> Callable[[NDArray, tuple[str, ...], Setting], NDArray]:
    return lambda array, axes, setting: array * expression.at(setting)


def ratio(sample: Sample) -> float:
    """The measured array over the expected one, by least squares: their inner product over the expected one's."""
    known = sample.known
    expected, measured = sample.expected[known], sample.measured[known]
    square = float(expected @ expected)
    return float(expected @ measured) / square if square else float("nan")


__all__ = ["axis_changes", "factors", "fit", "gives", "ratio"]
