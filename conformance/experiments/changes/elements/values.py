"""Values: each element is a function of the expected one, whose numbers are read off from the samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.sample import Change, Sample, Setting

Elementwise = Callable[[NDArray], NDArray]


def sigmoid(x: NDArray) -> NDArray:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _erf(x: NDArray) -> NDArray:
    return np.vectorize(math.erf, otypes=[float])(x) if x.size else x


def _tanh_gelu(x: NDArray) -> NDArray:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


FUNCTIONS: dict[str, tuple[str, Elementwise]] = {
    "abs": ("without its signs", np.abs),
    "relu": ("with negative numbers replaced by 0 (ReLU)", lambda x: np.maximum(x, 0.0)),
    "minus-relu": ("with positive numbers replaced by 0", lambda x: np.minimum(x, 0.0)),
    "squared": ("squared", np.square),
    "squared-signed": ("squared, with its signs", lambda x: x * np.abs(x)),
    "root": ("under a square root, with its signs", lambda x: np.sign(x) * np.sqrt(np.abs(x))),
    "root-abs": ("under a square root, without its signs", lambda x: np.sqrt(np.abs(x))),
    "cubed": ("cubed", lambda x: x**3),
    "inverse": ("inverted: 1 / x", lambda x: 1.0 / x),
    "sign": ("replaced by its signs", np.sign),
    "tanh": ("through tanh", np.tanh),
    "sigmoid": ("through the logistic function", sigmoid),
    "sigmoid-centred": ("through the logistic function less 1/2", lambda x: sigmoid(x) - 0.5),
    "erf": ("through erf", _erf),
    "silu": ("through SiLU", lambda x: x * sigmoid(x)),
    "gelu-tanh": ("through GELU (tanh form)", _tanh_gelu),
    "gelu": ("through GELU", lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))),
    "gelu-fast": ("through x * sigmoid(1.702 x)", lambda x: x * sigmoid(1.702 * x)),
    "softplus": ("through softplus", lambda x: np.logaddexp(x, 0.0)),
    "softsign": ("through x / (1 + |x|)", lambda x: x / (1.0 + np.abs(x))),
    "elu": ("through ELU", lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0)))),
    "sin": ("through sin", np.sin),
    "cos": ("through cos", np.cos),
    "arctan": ("through arctan", np.arctan),
    "arcsinh": ("through arcsinh", np.arcsinh),
    "exp": ("through exp", np.exp),
    "exp2": ("through 2^x", np.exp2),
    "expm1": ("through exp(x) - 1", np.expm1),
    "log-abs": ("through ln |x|", lambda x: np.log(np.abs(x))),
    "log1p-signed": ("through ln(1 + |x|), with its signs", lambda x: np.sign(x) * np.log1p(np.abs(x))),
    "one-minus": ("replaced by 1 - x", lambda x: 1.0 - x),
    "floor": ("rounded down to integers", np.floor),
    "ceil": ("rounded up to integers", np.ceil),
    "truncated": ("truncated to integers", np.trunc),
    "rounded": ("rounded to integers", np.round),
}
"""Name -> (words, function)."""


def value_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Every function of the elements that may be meant; the caller verifies."""
    first = next(sample for sample in samples if sample.differs)
    known = first.known
    expected, measured = first.expected[known], first.measured[known]
    if not np.isfinite(expected).all() or not np.isfinite(measured).all():
        return
    yield from _fixed(samples, expected, measured, first.tolerance)
    for family in (_offset, _affine, _slopes, _power):
        with np.errstate(all="ignore"):
            yield from family(samples)


def change_of(slug: str, words: str, function: Elementwise) -> Change:
    """A change of each element, without numbers that depend on sizes."""

    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        with any_numbers:
            return function(array)

    return Change(slug, words, apply)


def _fixed(samples: Sequence[Sample], expected: NDArray, measured: NDArray, tolerance: float) -> Iterator[Change]:
    """The functions without a number, as they are or times one."""
    some = slice(0, 64)
    x, y = expected[some], measured[some]
    for name, (words, function) in FUNCTIONS.items():
        with any_numbers:
            made = function(x)
        if not np.isfinite(made).all():
            continue
        if (np.abs(made - y) <= tolerance).all():
            yield change_of(name, words, function)
            continue
        square = float(made @ made)
        factor = float(made @ y) / square if square else 0.0
        if factor and (np.abs(factor * made - y) <= tolerance).all():
            factors = [_factor(function, sample) for sample in samples]
            for expression in _expressions(samples, factors):
                yield scaled(change_of(name, words, function), expression)


def scaled(change: Change, expression: Expression) -> Change:
    """A change, and the result times a number."""

    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        return expression.at(setting) * change.apply(array, axes, setting)

    return Change(f"{change.slug}-times-{expression.slug}", f"{change.words}, times {expression.words}", apply)


def _factor(function: Elementwise, sample: Sample) -> float:
    with any_numbers:
        made = function(sample.expected[sample.known])
    square = float(made @ made)
    return float(made @ sample.measured[sample.known]) / square if square else float("nan")


def _expressions(samples: Sequence[Sample], numbers: Sequence[float]) -> list[Expression]:
    pairs = [(number, sample.setting) for number, sample in zip(numbers, samples, strict=True)]
    return expressions_of(pairs, unit=max(sample.unit for sample in samples))


def read_numbers(samples: Sequence[Sample], read: Callable[[NDArray, NDArray], float]) -> list[Expression]:
    """A number read off each sample's (expected, measured) elements, as expressions."""
    numbers = []
    for sample in samples:
        if sample.known.any():
            numbers.append((read(sample.expected[sample.known], sample.measured[sample.known]), sample.setting))
    return expressions_of(numbers, unit=max(sample.unit for sample in samples))


def with_number(slug: str, words: str, expression: Expression, function: Callable[[NDArray, float], NDArray]) -> Change:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        with any_numbers:
            return function(array, expression.at(setting))

    return Change(f"{slug}-{expression.slug}", words.format(expression.words), apply)


def _offset(samples: Sequence[Sample]) -> Iterator[Change]:
    for expression in read_numbers(samples, lambda x, y: float(np.mean(y - x))):
        yield with_number("plus", "plus {}", expression, np.add)
    for expression in read_numbers(samples, lambda x, y: float(y[0]) if np.ptp(y) <= 1e-9 * abs(y[0]) else math.nan):
        yield with_number("constant", "replaced by {}", expression, lambda x, c: np.full_like(x, c))


def _affine(samples: Sequence[Sample]) -> Iterator[Change]:
    """A x + b."""

    def slope(x: NDArray, y: NDArray) -> float:
        centred = x - x.mean()
        return float(centred @ y / (centred @ centred)) if len(x) > 2 else math.nan

    for a in read_numbers(samples, slope)[:3]:
        for b in read_numbers(samples, lambda x, y: float(y.mean() - slope(x, y) * x.mean()))[:3]:
            if a.words not in ("0", "1") and b.words != "0":
                yield _affine_change(a, b)


def _affine_change(a: Expression, b: Expression) -> Change:
    return Change(
        f"times-{a.slug}-plus-{b.slug}",
        f"times {a.words}, plus {b.words}",
        lambda array, axes, setting: a.at(setting) * array + b.at(setting),
    )


def _slopes(samples: Sequence[Sample]) -> Iterator[Change]:
    """One factor for positive elements, another for negative ones."""

    def slope(sign: float) -> Callable[[NDArray, NDArray], float]:
        def read(x: NDArray, y: NDArray) -> float:
            part = x * sign > 0.0
            return float(x[part] @ y[part] / (x[part] @ x[part])) if part.any() else math.nan

        return read

    for above in read_numbers(samples, slope(1.0))[:2]:
        for below in read_numbers(samples, slope(-1.0))[:2]:
            if above.words != below.words:
                yield _slopes_change(above, below)


def _slopes_change(above: Expression, below: Expression) -> Change:
    words = f"times {above.words} where positive, times {below.words} where negative"
    if above.words == "1":
        words = f"with negative numbers times {below.words}"
    return Change(
        f"positive-times-{above.slug}-negative-times-{below.slug}",
        words,
        lambda array, axes, setting: array * np.where(array > 0.0, above.at(setting), below.at(setting)),
    )


def _power(samples: Sequence[Sample]) -> Iterator[Change]:
    """C |x|^p with the signs of x, or without."""

    def fitted(x: NDArray, y: NDArray) -> tuple[float, float]:
        part = (x != 0.0) & (y != 0.0)
        if part.sum() < 3:
            return math.nan, math.nan
        u, v = np.log(np.abs(x[part])), np.log(np.abs(y[part]))
        u0, v0 = u.mean(), v.mean()
        slope = float((u - u0) @ (v - v0) / ((u - u0) @ (u - u0)))
        return slope, float(np.exp(v0 - slope * u0))  # infinite, where it is none

    first = next(sample for sample in samples if sample.differs)
    x, y = first.expected[first.known], first.measured[first.known]
    signed = not bool(((x < 0.0) & (y > 0.0)).any())
    with_sign: Elementwise = np.sign if signed else np.ones_like
    for power in read_numbers(samples, lambda x, y: fitted(x, y)[0])[:2]:
        for factor in read_numbers(samples, lambda x, y: fitted(x, y)[1])[:2]:
            if power.words != "1":
                yield _power_change(power, factor, with_sign, signed)


def _power_change(power: Expression, factor: Expression, with_sign: Elementwise, signed: bool) -> Change:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        with any_numbers:
            return factor.at(setting) * with_sign(array) * np.abs(array) ** power.at(setting)

    times = "" if factor.words == "1" else f", times {factor.words}"
    signs = "with" if signed else "without"
    return Change(
        f"power-{power.slug}-{signs}-signs-times-{factor.slug}",
        f"to the power of {power.words}, {signs} its signs{times}",
        apply,
    )
