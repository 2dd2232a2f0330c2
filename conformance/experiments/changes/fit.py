"""Fit: the changes that turn every sample's expected array into the measured one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from numpy.typing import NDArray

from conformance.experiments.changes.axes import axis_changes
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.zoo.bug import DoesNotApply


def fit(samples: Sequence[Sample]) -> list[Change]:
    """Every known change that gives all measured arrays, and is none where nothing differs; the simplest first.

    Args:
        samples: at several sizes, and with generic numbers: else several changes fit.
    """
    if not any(sample.differs for sample in samples):
        return []
    return [change for change in _candidates(samples) if gives(change, samples)]


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
    yield from axis_changes(samples[0].axes)


def factors(samples: Sequence[Sample]) -> Iterator[Change]:
    """The array times a number, which may depend on the sizes."""
    numbers = [(ratio(sample), sample.setting) for sample in samples]
    for expression in expressions_of(numbers, unit=samples[0].unit):
        yield Change(f"times-{expression.words.replace(' ', '')}", f"times {expression.words}", _times(expression))


def _times(expression: Expression) -> Callable[[NDArray, tuple[str, ...], Setting], NDArray]:
    return lambda array, axes, setting: array * expression.at(setting)


def ratio(sample: Sample) -> float:
    """The measured array over the expected one, by least squares: their inner product over the expected one's."""
    known = sample.known
    expected, measured = sample.expected[known], sample.measured[known]
    square = float(expected @ expected)
    return float(expected @ measured) / square if square else float("nan")
