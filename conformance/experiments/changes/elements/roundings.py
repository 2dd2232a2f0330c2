"""Roundings: elements rounded to a format, to some bits or digits, or to a grid; bits and steps are read off.

The largest relative error of k significant bits is 2^-k; the largest absolute error of a grid is half its step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.changes.elements.values import Elementwise, change_of, read_numbers, with_number
from conformance.experiments.changes.numbers import neat
from conformance.experiments.changes.sample import Change, Sample, Setting


def to_bits(x: NDArray, bits: int, how: Elementwise = np.round) -> NDArray:
    """Numbers of so many significant bits, of any exponent.

    >>> to_bits(np.array([1 / 3, -5.3]), 3)
    array([ 0.3125, -5.    ])
    """
    mantissa, exponent = np.frexp(x)
    return np.ldexp(how(np.ldexp(mantissa, bits)), exponent - bits)


def _to_digits(x: NDArray, digits: int) -> NDArray:
    with any_numbers:
        exponent = np.floor(np.log10(np.abs(x)))
    step = 10.0 ** (np.where(np.isfinite(exponent), exponent, 0.0) - digits + 1)
    return np.round(x / step) * step


FORMATS: dict[int, str] = {24: "float32", 11: "float16 (or TF32)", 8: "bfloat16", 4: "float8 e4m3", 3: "float8 e5m2"}
"""Significant bits -> the format that has them."""

WAYS: dict[str, tuple[str, Elementwise]] = {"rounded": ("rounded", np.round), "truncated": ("truncated", np.trunc)}


def rounding_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Every rounding that may be meant; the caller verifies."""
    first = max((sample for sample in samples if sample.differs), key=lambda sample: sample.known.sum())
    x, y = first.expected[first.known], first.measured[first.known]
    if not (np.isfinite(x).all() and np.isfinite(y).all()) or not x.any():
        return
    error = np.abs(y - x)
    with any_numbers:
        relative = float(np.nanmax(np.where(x != 0.0, error / np.abs(x), np.nan)))
    if 1e-17 < relative < 1.01:
        yield from _of_bits(relative)
    if error.max() > 0.0:
        yield from _of_grid(samples, float(error.max()))
    yield from _scaled_grid(samples)


def _of_bits(relative: float) -> Iterator[Change]:
    least = int(-math.log2(relative))
    for bits in range(max(1, least - 1), least + 3):
        name = f" ({FORMATS[bits]})" if bits in FORMATS else ""
        for slug, (words, how) in WAYS.items():
            yield change_of(
                f"{slug}-to-{bits}-bits",
                f"{words} to {bits} significant bits{name}",
                partial(to_bits, bits=bits, how=how),
            )
    digits = max(1, int(-math.log10(relative)))
    for count in range(max(1, digits - 1), digits + 2):
        yield change_of(
            f"rounded-to-{count}-digits",
            f"rounded to {count} significant digits",
            partial(_to_digits, digits=count),
        )
    # Below their smallest normal numbers these formats have fewer bits.
    yield change_of("float16", "rounded to float16", lambda x: x.astype(np.float16).astype(float))
    yield change_of("float32", "rounded to float32", lambda x: x.astype(np.float32).astype(float))


GRIDS: dict[str, tuple[str, Elementwise]] = {
    **WAYS,
    "down": ("rounded down", np.floor),
    "up": ("rounded up", np.ceil),
    "half-up": ("rounded (halves up)", lambda x: np.floor(x + 0.5)),
}


def _of_grid(samples: Sequence[Sample], error: float) -> Iterator[Change]:
    """Multiples of a step: a power of 2 or 10, 1 / (2^k - 1), or the smallest difference of what was measured."""
    steps: dict[str, float] = {}
    for least in (error, 2.0 * error):
        two = math.ceil(math.log2(least) - 1e-6)
        ten = math.ceil(math.log10(least) - 1e-6)
        steps |= {neat(2.0**k)[0]: 2.0**k for k in (two, two + 1)}
        steps |= {neat(10.0**k)[0]: 10.0**k for k in (ten, ten + 1)}
        if least < 1.0:
            bits = max(1, round(-math.log2(least)))
            steps |= {f"1/{2**k - 1}": 1.0 / (2**k - 1) for k in range(max(2, bits - 1), bits + 3)}
    for name, step in steps.items():
        yield from _steps(name, step)
    for expression in read_numbers(samples, lambda x, y: _step(y))[:2]:
        for slug, (words, how) in GRIDS.items():
            yield with_number(
                f"{slug}-to-multiples-of",
                f"{words} to multiples of {{}}",
                expression,
                partial(_to_multiples, how=how),
            )


def _steps(name: str, step: float) -> Iterator[Change]:
    for slug, (words, how) in GRIDS.items():
        yield change_of(
            f"{slug}-to-multiples-of-{name}",
            f"{words} to multiples of {name}",
            partial(_to_multiples, step=step, how=how),
        )


def _to_multiples(x: NDArray, step: float, how: Elementwise) -> NDArray:
    return how(x / step) * step


def _step(y: NDArray) -> float:
    """The smallest difference of two different numbers, then the step that all are multiples of, by least squares."""
    ordered = np.unique(np.abs(np.append(y, 0.0)))
    gaps = np.diff(ordered)
    gaps = gaps[gaps > 1e-9 * max(ordered[-1], 1e-300)]
    if not len(gaps):
        return math.nan
    step = float(gaps.min())
    for _ in range(3):
        counts = np.round(y / step)
        step = float(counts @ y / max(counts @ counts, 1.0))
        if step <= 0.0:
            return math.nan
    return step


def _scaled_grid(samples: Sequence[Sample]) -> Iterator[Change]:
    """b-bit integers times a scale: the largest absolute value of the array, or of each row, is the largest integer."""
    axes = samples[0].axes
    for bits in (8, 4, 7, 6, 5, 3, 2):
        most = 2 ** (bits - 1) - 1
        for position in (None, *range(-len(axes), 0)):
            over = "whole array" if position is None else f"{axes[position]} axis"
            yield Change(
                f"int{bits}-over-{over.replace(' ', '-')}",
                f"rounded to {bits}-bit integers scaled by the largest of the {over}",
                _scaled(most, position),
            )


def _scaled(most: int, axis: int | None) -> Callable[[NDArray, tuple[str, ...], Setting], NDArray]:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        with any_numbers:
            scale = np.abs(array).max(axis=axis, keepdims=True, initial=0.0) / most
            return np.where(scale > 0.0, np.round(array / scale) * scale, array)

    return apply
