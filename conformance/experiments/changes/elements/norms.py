"""Norms: elements divided by a size of their slices along an axis, plus a number that is read off.

y = x / (m + e)  or  x / sqrt(m^2 + e), where m is the norm, the root mean square or the standard deviation of the
slice, and x may be less its mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.sample import Change, Sample, Setting


class Norm(NamedTuple):
    """A size of slices: words, (array, axis) -> the size, and whether it is of x less its mean."""

    words: str
    size: Callable[..., NDArray]
    centred: bool


def _norm(x: NDArray, axis: int) -> NDArray:
    found: NDArray = np.sqrt((x * x).sum(axis=axis, keepdims=True))
    return found


def _rms(x: NDArray, axis: int) -> NDArray:
    found: NDArray = np.sqrt((x * x).mean(axis=axis, keepdims=True))
    return found


def _spread(x: NDArray, axis: int) -> NDArray:
    found: NDArray = x.std(axis=axis, keepdims=True)
    return found


NORMS: dict[str, Norm] = {
    "norm": Norm("their norm", _norm, False),
    "rms": Norm("their root mean square", _rms, False),
    "spread": Norm("their standard deviation", _spread, False),
    "layer-norm": Norm("their standard deviation, after their mean is subtracted,", _spread, True),
}

INSIDE = {False: "{} over the {} axis plus {}", True: "{} over the {} axis, with {} added to its square"}


def norm_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Every norm that may be meant; the caller verifies."""
    for (position, name), (slug, norm), inside in product(enumerate(samples[0].axes), NORMS.items(), INSIDE):
        axis = position - len(samples[0].axes)
        numbers = [_number(sample, axis, norm, inside) for sample in samples if sample.differs]
        if None in numbers:
            continue
        for number in _expressions([one for one in numbers if one is not None]):
            words = INSIDE[inside].format(norm.words, name, number.words)
            if number.words == "0":
                if inside:
                    continue
                words = f"{norm.words} over the {name} axis"
            where = "inside-" if inside else ""
            yield Change(
                f"over-{slug}-of-{name}-plus-{where}{number.slug}",
                f"divided by {words}",
                _over(axis, norm, inside, number),
            )


def _number(sample: Sample, axis: int, norm: Norm, inside: bool) -> tuple[float, Setting, float] | None:
    """The number of one sample, and how far off it may be; None if its slices have no ratio, or several numbers."""
    if sample.expected.shape[axis] < 2 or not np.isfinite(sample.expected).all():
        return None
    x, size = _sized(sample.expected, axis, norm)
    y = sample.measured
    square = (y * y).sum(axis=axis, keepdims=True)
    if not np.isfinite(square).all() or not (square > 0.0).all():
        return None
    ratio = (x * y).sum(axis=axis, keepdims=True) / square
    if (np.abs(x - ratio * y) > 10.0 * sample.tolerance * np.abs(ratio).max()).any() or not (ratio > 0.0).all():
        return None
    numbers = ratio * ratio - size * size if inside else ratio - size
    off = 1e-9 * float((ratio * ratio).max() if inside else ratio.max())
    if np.ptp(numbers) > 100.0 * off:
        return None
    number = float(np.median(numbers))
    return (0.0 if abs(number) <= off else number), sample.setting, off


def _expressions(numbers: Sequence[tuple[float, Setting, float]]) -> list[Expression]:
    if not numbers:
        return []
    largest = max(abs(number) for number, _, _ in numbers)
    error = max(off for _, _, off in numbers) / largest if largest else None
    return expressions_of([(number, setting) for number, setting, _ in numbers], error=error)


def _sized(x: NDArray, axis: int, norm: Norm) -> tuple[NDArray, NDArray]:
    size = norm.size(x, axis)
    return (x - x.mean(axis=axis, keepdims=True) if norm.centred else x), size


def _over(
    axis: int, norm: Norm, inside: bool, number: Expression
) -> Callable[[NDArray, tuple[str, ...], Setting], NDArray]:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        x, size = _sized(array, axis, norm)
        plus = number.at(setting)
        by = np.sqrt(size * size + plus) if inside else size + plus
        return np.where(by == 0.0, 0.0, x / np.where(by == 0.0, 1.0, by))

    return apply
