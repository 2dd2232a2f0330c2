"""Limits: elements that are capped, clipped or dropped at a number that is read off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.elements.values import Elementwise, change_of, read_numbers, sigmoid, with_number
from conformance.experiments.changes.numbers import neat
from conformance.experiments.changes.sample import Change, Sample


def limit_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Every cap, clip and threshold that may be meant; the caller verifies."""
    for family in (_capped, _scaled_inside, _clipped, _shrunk, _thresholded):
        with np.errstate(all="ignore"):
            yield from family(samples)


SQUASHING: dict[str, tuple[str, Elementwise]] = {
    "tanh": ("c * tanh(x / c)", np.tanh),
    "softsign": ("x / (1 + |x| / c)", lambda x: x / (1.0 + np.abs(x))),
    "arctan": ("c * arctan(x / c)", np.arctan),
    "sin": ("c * sin(x / c)", np.sin),
}
"""Name -> (words, a function f with slope 1 at 0): c * f(x / c)."""


def _capped(samples: Sequence[Sample]) -> Iterator[Change]:
    for name, (words, function) in SQUASHING.items():
        for cap in read_numbers(samples, partial(_cap, function=function)):
            yield with_number(
                f"cap-{name}",
                f"capped by {words} with c = {{}}",
                cap,
                partial(_scaled_back, function=function),
            )


def _scaled_back(x: NDArray, c: float, function: Elementwise) -> NDArray:
    return c * function(x / c)


def _cap(x: NDArray, y: NDArray, function: Elementwise) -> float:
    """C such that c f(x / c) is y at the largest x, by bisection: the result grows with c."""
    place = int(np.abs(x).argmax())
    at, wanted = abs(float(x[place])), abs(float(y[place]))
    if not 0.0 < wanted < at or x[place] * y[place] < 0:
        return math.nan
    low, high = math.log(wanted) - 4.0, math.log(at) + 12.0
    for _ in range(70):
        middle = 0.5 * (low + high)
        c = math.exp(middle)
        low, high = (middle, high) if c * float(function(np.array(at / c))) < wanted else (low, middle)
    return math.exp(0.5 * (low + high))


def _scaled_inside(samples: Sequence[Sample]) -> Iterator[Change]:
    """tanh(a x) and the like: the number inside, the result not scaled back."""
    for name, inverse, function in (
        ("tanh", np.arctanh, np.tanh),
        ("logistic function", lambda y: np.log(y / (1 - y)), sigmoid),
        ("exp", np.log, np.exp),
        ("sin", np.arcsin, np.sin),
    ):

        def inside(x: NDArray, y: NDArray, inverse: Elementwise = inverse) -> float:
            place = int(np.abs(np.abs(x) - np.median(np.abs(x))).argmin())
            return float(inverse(y[place : place + 1])[0] / x[place])

        for factor in read_numbers(samples, inside):
            yield with_number(
                f"{name.replace(' ', '-')}-of-times",
                f"through {name} of {{}} x",
                factor,
                partial(_of_times, function=function),
            )


def _of_times(x: NDArray, factor: float, function: Elementwise) -> NDArray:
    return function(factor * x)


def _clipped(samples: Sequence[Sample]) -> Iterator[Change]:
    above = read_numbers(samples, lambda x, y: float(y.max()))
    below = read_numbers(samples, lambda x, y: float(y.min()))
    for c in read_numbers(samples, lambda x, y: float(np.abs(y).max())):
        yield with_number("clipped-at", "clipped at +-{}", c, lambda x, c: np.clip(x, -c, c))
    for c in above:
        yield with_number("at-most", "at most {}: larger numbers are replaced by it", c, np.minimum)
    for c in below:
        yield with_number("at-least", "at least {}: smaller numbers are replaced by it", c, np.maximum)
    if above and below:
        low, high = below[0], above[0]
        yield Change(
            f"clipped-{low.slug}-to-{high.slug}",
            f"clipped to {low.words} ... {high.words}",
            lambda array, axes, setting: np.clip(array, low.at(setting), high.at(setting)),
        )


def _shrunk(samples: Sequence[Sample]) -> Iterator[Change]:
    """Numbers moved towards 0 by c, and 0 if they are smaller."""
    for c in read_numbers(samples, lambda x, y: float(np.abs(x - y).max())):
        yield with_number("shrunk-by", "moved towards 0 by {}", c, _towards_zero)


def _towards_zero(x: NDArray, c: float) -> NDArray:
    return np.sign(x) * np.maximum(np.abs(x) - c, 0.0)


def _thresholded(samples: Sequence[Sample]) -> Iterator[Change]:
    """Numbers below a threshold are 0: it lies between the largest that is and the smallest that is not."""
    for name, words, size in (
        ("small", "|x| < {}", np.abs),
        ("low", "x < {}", lambda x: x),
        ("large", "|x| > {}", lambda x: -np.abs(x)),
        ("high", "x > {}", lambda x: -x),
    ):
        low, high = -math.inf, math.inf
        for sample in samples:
            x, y = size(sample.expected[sample.known]), sample.measured[sample.known]
            dropped = np.abs(y) <= sample.tolerance
            low, high = max(low, x[dropped].max(initial=-math.inf)), min(high, x[~dropped].min(initial=math.inf))
        if not -math.inf < low < high < math.inf:
            continue
        limit = shortest(low, high)
        text = neat(abs(limit))[0] if name in ("large", "high") else neat(limit)[0]
        yield change_of(
            f"zero-where-{name}-{text}",
            f"replaced by 0 where {words.format(text)}",
            partial(_zero_below, size=size, limit=limit),
        )


def _zero_below(x: NDArray, size: Elementwise, limit: float) -> NDArray:
    return np.where(size(x) < limit, 0.0, x)


def shortest(low: float, high: float) -> float:
    """The number with the fewest digits in an interval."""
    if low < 0.0 < high:
        return 0.0
    for digits in range(1, 17):
        for number in (0.5 * (low + high), low, high):
            short = float(f"{number:.{digits}g}")
            if low < short <= high:
                return short
    return 0.5 * (low + high)
