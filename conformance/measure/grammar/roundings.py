"""Roundings: to a format, to some bits or digits, or to a grid; bits and steps are read off.

The largest relative error of k significant bits is 2^-k; the largest absolute error of a grid is half its step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.measure.grammar.expressions import expressions_of
from conformance.measure.grammar.functions import Function, with_number
from conformance.measure.grammar.numbers import neat
from conformance.measure.grammar.sample import Change, Sample, Setting, elementwise
from mha_core.dtypes import round_to


def to_bits(x: NDArray, bits: int, how: Function = np.round) -> NDArray:
    """Numbers of so many significant bits, of any exponent.

    >>> to_bits(np.array([1 / 3, -5.3]), 3)
    array([ 0.3125, -5.    ])
    """
    mantissa, exponent = np.frexp(x)
    return np.ldexp(how(np.ldexp(mantissa, bits)), exponent - bits)


def _to_digits(x: NDArray, digits: int) -> NDArray:
    exponent = np.floor(np.log10(np.abs(x)))
    step = 10.0 ** (np.where(np.isfinite(exponent), exponent, 0.0) - digits + 1)
    return np.round(x / step) * step


BITS: dict[int, str] = {24: "float32", 11: "float16 (or TF32)", 8: "bfloat16", 4: "float8 e4m3", 3: "float8 e5m2"}
"""Significant bits -> the format that has them."""

FORMATS = ("bfloat16", "float16", "float32")

WAYS: dict[str, tuple[str, Function]] = {"rounded": ("rounded", np.round), "truncated": ("truncated", np.trunc)}

GRIDS: dict[str, tuple[str, Function]] = {
    **WAYS,
    "down": ("rounded down", np.floor),
    "up": ("rounded up", np.ceil),
    "half-up": ("rounded (halves up)", lambda x: np.floor(x + 0.5)),
}


def to_format(dtype: str) -> Change:
    """Rounded to a format, as its own conversion does, whose smallest numbers have fewer bits."""
    return elementwise(dtype, f"rounded to {dtype}", lambda x: round_to(x, dtype).astype(np.float64))


def integers(bits: int, axis: str = "") -> Change:
    """Integers of some bits times a scale: the largest of the array, or along an axis, is the largest integer."""
    most = 2 ** (bits - 1) - 1

    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        over = axes.index(axis) if axis in axes else None
        scale = np.abs(array).max(axis=over, keepdims=True, initial=0.0) / most
        return np.where(scale > 0.0, np.round(array / scale) * scale, array)

    over = f"{axis} axis" if axis else "whole array"
    words = f"rounded to {bits}-bit integers scaled by the largest of the {over}"
    return Change(f"int{bits}-over-{over}", words, apply)


def _to_decimals(count: int, x: NDArray) -> NDArray:
    return np.round(x, count)


COMMON: tuple[Change, ...] = (
    *map(to_format, FORMATS),
    elementwise("rounded-to-8-bits", "rounded to 8 significant bits (bfloat16)", partial(to_bits, bits=8)),
    elementwise("rounded-to-11-bits", "rounded to 11 significant bits (TF32)", partial(to_bits, bits=11)),
    integers(8),
    *(elementwise(f"{n}-decimals", f"rounded to {n} decimals", partial(_to_decimals, n)) for n in (1, 2, 3, 4)),
)
"""Those that are tried at places where nothing can be read."""


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
        yield from map(to_format, FORMATS)
    if error.max() > 0.0:
        yield from _of_grid(samples, float(error.max()))
    for bits in (8, 4, 7, 6, 5, 3, 2):
        yield from (integers(bits, axis) for axis in ("", *samples[0].axes))


def _of_bits(relative: float) -> Iterator[Change]:
    least = int(-math.log2(relative))
    for bits in range(max(1, least - 1), least + 3):
        name = f" ({BITS[bits]})" if bits in BITS else ""
        for slug, (words, how) in WAYS.items():
            said = f"{words} to {bits} significant bits{name}"
            yield elementwise(f"{slug}-to-{bits}-bits", said, partial(to_bits, bits=bits, how=how))
    digits = max(1, int(-math.log10(relative)))
    for count in range(max(1, digits - 1), digits + 2):
        said = f"rounded to {count} significant digits"
        yield elementwise(f"rounded-to-{count}-digits", said, partial(_to_digits, digits=count))


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
    for slug, (words, how) in GRIDS.items():
        for name, step in steps.items():
            said = f"{words} to multiples of {name}"
            yield elementwise(f"{slug}-to-multiples-of-{name}", said, partial(_to_multiples, how, c=step))
    numbers = [(_step(sample.measured[sample.known]), sample.setting) for sample in samples if sample.known.any()]
    for number in expressions_of(numbers, unit=max(sample.unit for sample in samples))[:2]:
        for slug, (words, how) in GRIDS.items():
            said = f"{words} to multiples of {{}}"
            yield with_number(f"{slug}-to-multiples-of", said, number, partial(_to_multiples, how))


def _to_multiples(how: Function, x: NDArray, c: float) -> NDArray:
    return how(x / c) * c


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
