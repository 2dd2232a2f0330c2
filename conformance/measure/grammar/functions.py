"""Functions of a number: one table of those without a parameter, one of families whose parameter is solved for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.measure.grammar.expressions import Expression, expressions_of
from conformance.measure.grammar.numbers import erf, neat, roundest, sigmoid, solve
from conformance.measure.grammar.sample import Change, Sample, Setting, elementwise

Function = Callable[[NDArray], NDArray]


def _gelu_tanh(x: NDArray) -> NDArray:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


FUNCTIONS: dict[str, tuple[str, Function]] = {
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
    "erf": ("through erf", erf),
    "silu": ("through SiLU", lambda x: x * sigmoid(x)),
    "gelu-tanh": ("through GELU (tanh form)", _gelu_tanh),
    "gelu": ("through GELU", lambda x: 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))),
    "gelu-fast": ("through x * sigmoid(1.702 x)", lambda x: x * sigmoid(1.702 * x)),
    "softplus": ("through softplus", lambda x: np.logaddexp(x, 0.0)),
    "softsign": ("through x / (1 + |x|)", lambda x: x / (1.0 + np.abs(x))),
    "elu": ("through ELU", lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0)))),
    "elu-plus-1": ("through ELU plus 1", lambda x: np.where(x > 0.0, x + 1.0, np.exp(np.minimum(x, 0.0)))),
    "sin": ("through sin", np.sin),
    "cos": ("through cos", np.cos),
    "arctan": ("through arctan", np.arctan),
    "arcsinh": ("through arcsinh", np.arcsinh),
    "sinh": ("through sinh", np.sinh),
    "cosh": ("through cosh", np.cosh),
    "exp": ("through exp", np.exp),
    "exp2": ("through 2^x", np.exp2),
    "expm1": ("through exp(x) - 1", np.expm1),
    "gaussian": ("through exp(-x^2)", lambda x: np.exp(-x * x)),
    "half-gaussian": ("through exp(-x^2 / 2)", lambda x: np.exp(-x * x / 2.0)),
    "cauchy": ("through 1 / (1 + x^2)", lambda x: 1.0 / (1.0 + x * x)),
    "log-abs": ("through ln |x|", lambda x: np.log(np.abs(x))),
    "log1p-signed": ("through ln(1 + |x|), with its signs", lambda x: np.sign(x) * np.log1p(np.abs(x))),
    "one-minus": ("replaced by 1 - x", lambda x: 1.0 - x),
    "floor": ("rounded down to integers", np.floor),
    "ceil": ("rounded up to integers", np.ceil),
    "truncated": ("truncated to integers", np.trunc),
    "rounded": ("rounded to integers", np.round),
}
"""Name -> (words, function)."""

SQUASHING: dict[str, tuple[str, Function]] = {
    "tanh": ("c * tanh(x / c)", np.tanh),
    "softsign": ("x / (1 + |x| / c)", lambda x: x / (1.0 + np.abs(x))),
    "arctan": ("c * arctan(x / c)", np.arctan),
    "arctan-to-1": ("2 c / pi * arctan(x / c)", lambda x: np.arctan(x) * 2.0 / np.pi),
    "sin": ("c * sin(x / c)", np.sin),
    "root": ("x / sqrt(1 + (x / c)^2)", lambda x: x / np.sqrt(1.0 + x * x)),
    "erf": ("c * erf(x / c)", erf),
    "sigmoid": ("c * (2 sigmoid(x / c) - 1)", lambda x: 2.0 * sigmoid(x) - 1.0),
}
"""Name -> (words, a function f by which a softcap may bound numbers): c * f(x / c)."""


class Family(NamedTuple):
    """Functions that differ by a number c.

    Args:
        slug, words: a name, and words with {} for the number.
        of: (x, c) -> y.
        read: (x, y) -> the number, NaN if none; or None: it is solved for.
        starts: of solving, as shares of the largest |y|, or with `absolute` as numbers.
    """

    slug: str
    words: str
    of: Callable[[NDArray, float], NDArray]
    read: Callable[[NDArray, NDArray], float] | None = None
    starts: tuple[float, ...] = (0.6, 1.0, 1.5, 4.0)
    absolute: bool = False


def _of_times(function: Function) -> Callable[[NDArray, float], NDArray]:
    return lambda x, c: function(c * x)


def _scaled_back(function: Function) -> Callable[[NDArray, float], NDArray]:
    return lambda x, c: c * function(x / c)


def _same_at(number: float | None, x: NDArray, y: NDArray) -> float:
    """The number that y is wherever x is 0, or with None wherever it is not; NaN if it is none, or several."""
    found = y[x != 0.0] if number is None else y[x == number]
    return float(found[0]) if len(found) and np.ptp(found) <= 1e-9 * abs(found[0]) and found[0] else math.nan


FAMILIES: tuple[Family, ...] = (
    Family("plus", "plus {}", np.add, lambda x, y: float(np.mean(y - x))),
    Family(
        "constant",
        "replaced by {}",
        lambda x, c: np.full_like(x, c),
        lambda x, y: float(y[0]) if np.ptp(y) <= 1e-9 * abs(y[0]) else math.nan,
    ),
    Family("zeros-become", "with zeros replaced by {}", lambda x, c: np.where(x == 0.0, c, x), partial(_same_at, 0.0)),
    Family(
        "others-become",
        "with all but zeros replaced by {}",
        lambda x, c: np.where(x == 0.0, x, c),
        partial(_same_at, None),
    ),
    Family("clipped-at", "clipped at +-{}", lambda x, c: np.clip(x, -c, c), lambda x, y: float(np.abs(y).max())),
    Family("at-most", "at most {}: larger numbers are replaced by it", np.minimum, lambda x, y: float(y.max())),
    Family("at-least", "at least {}: smaller numbers are replaced by it", np.maximum, lambda x, y: float(y.min())),
    Family(
        "shrunk-by",
        "moved towards 0 by {}",
        lambda x, c: np.sign(x) * np.maximum(np.abs(x) - c, 0.0),
        lambda x, y: float(np.abs(x - y).max()),
    ),
    *(
        Family(f"cap-{name}", f"capped by {words} with c = {{}}", _scaled_back(function))
        for name, (words, function) in SQUASHING.items()
    ),
    *(
        Family(f"{name}-of-times", f"through {words} of {{}} x", _of_times(function), None, (0.3, 1.0, 2.0), True)
        for name, words, function in (
            ("tanh", "tanh", np.tanh),
            ("sigmoid", "the logistic function", sigmoid),
            ("exp", "exp", np.exp),
            ("sin", "sin", np.sin),
            ("silu", "x times the logistic function", lambda x: x * sigmoid(x)),
        )
    ),
)
"""The numbers that have no row here, because they come in two: factors by sign, a x + b, c |x|^p."""


def function_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Every function of the elements that may be meant; the caller verifies."""
    first = next(sample for sample in samples if sample.differs)
    x, y = first.pairs
    if not np.isfinite(x).all() or not np.isfinite(y).all():
        return
    with any_numbers:
        # Where all that is right is one number, every function would do: it became another.
        one_number = np.ptp(np.concatenate([sample.pairs[0] for sample in samples])) == 0.0
        if not one_number:
            yield from _without_number(samples, x, y, first.tolerance)
        if one_number or first.axes == ("number",):  # a bound, or a cap, may make any one number of another
            yield from (one for family in FAMILIES[:2] for one in _of_family(samples, family, first))
            return
        for family in FAMILIES:
            yield from _of_family(samples, family, first)
        yield from _clipped_on_both_sides(samples)
        yield from _affine(samples)
        yield from _slopes(samples)
        yield from _power(samples, x, y)
        yield from _thresholds(samples)


def _without_number(samples: Sequence[Sample], x: NDArray, y: NDArray, tolerance: float) -> Iterator[Change]:
    """The functions without a number, as they are or times one."""
    x, y = x[:64], y[:64]
    for name, (words, function) in FUNCTIONS.items():
        made = function(x)
        if not np.isfinite(made).all():
            continue
        if (np.abs(made - y) <= tolerance).all():
            yield elementwise(name, words, function)
            continue
        square = float(made @ made)
        factor = float(made @ y) / square if square else 0.0
        if factor and (np.abs(factor * made - y) <= tolerance).all():
            for number in _numbers(samples, partial(_factor, function)):
                yield _times(elementwise(name, words, function), number)


def _factor(function: Function, x: NDArray, y: NDArray) -> float:
    made = function(x)
    square = float(made @ made)
    return float(made @ y) / square if square else math.nan


def _times(change: Change, number: Expression) -> Change:
    return Change(
        f"{change.slug}-times-{number.slug}",
        f"{change.words}, times {number.words}",
        lambda array, axes, setting: number.at(setting) * change.apply(array, axes, setting),
    )


def _numbers(samples: Sequence[Sample], read: Callable[[NDArray, NDArray], float]) -> list[Expression]:
    """A number read off each sample's (expected, measured) elements, as expressions."""
    numbers: list[tuple[float, Setting]] = []
    for one in samples:
        if one.known.any():
            numbers.append((read(*one.pairs), one.setting))
            if not math.isfinite(numbers[-1][0]):  # the others need not be read
                return []
    return expressions_of(numbers, unit=max(sample.unit for sample in samples))


def with_number(slug: str, words: str, number: Expression, of: Callable[[NDArray, float], NDArray]) -> Change:
    """A function with a number, as a change."""
    return Change(
        f"{slug}-{number.slug}",
        words.format(number.words),
        lambda array, axes, setting: of(array, number.at(setting)),
    )


def _of_family(samples: Sequence[Sample], family: Family, first: Sample) -> Iterator[Change]:
    read = family.read
    if read is None:
        # Where nothing differs a bound may be any large number: it is read off the others.
        samples = [sample for sample in samples if sample.differs]
        read = partial(_solved, family, tolerance=first.tolerance)
    for number in _numbers(samples, read)[:2]:
        yield with_number(family.slug, family.words, number, family.of)


def _solved(family: Family, x: NDArray, y: NDArray, tolerance: float) -> float:
    scale = 1.0 if family.absolute else float(np.abs(y).max(initial=0.0))
    if not scale or (not family.absolute and ((x * y < 0.0).any() or np.abs(x).max() <= scale)):
        return math.nan
    starts = [scale * start for start in family.starts]
    found = solve(lambda c: family.of(x, c) - y, starts, tolerance)
    return math.nan if found is None else found


def _clipped_on_both_sides(samples: Sequence[Sample]) -> Iterator[Change]:
    above = _numbers(samples, lambda x, y: float(y.max()))
    below = _numbers(samples, lambda x, y: float(y.min()))
    for low, high in list(zip(below, above, strict=False))[:1]:
        slug, words = f"clipped-{low.slug}-to-{high.slug}", f"clipped to {low.words} ... {high.words}"
        yield _of_two(slug, words, low, high, np.clip)


def _affine(samples: Sequence[Sample]) -> Iterator[Change]:
    """A x + b."""

    def slope(x: NDArray, y: NDArray) -> float:
        centred = x - x.mean()
        return float(centred @ y / (centred @ centred)) if len(x) > 2 else math.nan

    for a in _numbers(samples, slope)[:3]:
        for b in _numbers(samples, lambda x, y: float(y.mean() - slope(x, y) * x.mean()))[:3]:
            if a.words not in ("0", "1") and b.words != "0":
                yield _of_two(f"times-{a.slug}-plus-{b.slug}", f"times {a.words}, plus {b.words}", a, b, _line)


def _line(x: NDArray, a: float, b: float) -> NDArray:
    return a * x + b


def _of_two(
    slug: str, words: str, a: Expression, b: Expression, of: Callable[[NDArray, float, float], NDArray]
) -> Change:
    return Change(slug, words, lambda array, axes, setting: of(array, a.at(setting), b.at(setting)))


def _slopes(samples: Sequence[Sample]) -> Iterator[Change]:
    """One factor for positive elements, another for negative ones."""

    def slope(sign: float, x: NDArray, y: NDArray) -> float:
        part = x * sign > 0.0
        return float(x[part] @ y[part] / (x[part] @ x[part])) if part.any() else math.nan

    for above in _numbers(samples, partial(slope, 1.0))[:2]:
        for below in _numbers(samples, partial(slope, -1.0))[:2]:
            if above.words == below.words:
                continue
            words = f"times {above.words} where positive, times {below.words} where negative"
            if above.words == "1":
                words = f"with negative numbers times {below.words}"
            slug = f"positive-times-{above.slug}-negative-times-{below.slug}"
            yield _of_two(slug, words, above, below, lambda x, a, b: x * np.where(x > 0.0, a, b))


def _power(samples: Sequence[Sample], x: NDArray, y: NDArray) -> Iterator[Change]:
    """C |x|^p with the signs of x, or without."""

    def fitted(x: NDArray, y: NDArray) -> tuple[float, float]:
        part = (x != 0.0) & (y != 0.0)
        if part.sum() < 3:
            return math.nan, math.nan
        u, v = np.log(np.abs(x[part])), np.log(np.abs(y[part]))
        slope = float((u - u.mean()) @ (v - v.mean()) / ((u - u.mean()) @ (u - u.mean())))
        return slope, float(np.exp(v.mean() - slope * u.mean()))

    signed = not bool(((x < 0.0) & (y > 0.0)).any())
    with_sign: Function = np.sign if signed else np.ones_like
    signs = "with" if signed else "without"
    for power in _numbers(samples, lambda x, y: fitted(x, y)[0])[:2]:
        for factor in _numbers(samples, lambda x, y: fitted(x, y)[1])[:2]:
            if power.words != "1":
                times = "" if factor.words == "1" else f", times {factor.words}"
                yield _of_two(
                    f"power-{power.slug}-{signs}-signs-times-{factor.slug}",
                    f"to the power of {power.words}, {signs} its signs{times}",
                    power,
                    factor,
                    lambda x, p, c: c * with_sign(x) * np.abs(x) ** p,
                )


def _thresholds(samples: Sequence[Sample]) -> Iterator[Change]:
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
        if -math.inf < low < high < math.inf:
            limit = roundest(low, high)
            text = neat(abs(limit))[0] if name in ("large", "high") else neat(limit)[0]
            zero_below = partial(_zero_below, size, limit)
            yield elementwise(f"zero-where-{name}-{text}", f"replaced by 0 where {words.format(text)}", zero_below)


def _zero_below(size: Function, limit: float, x: NDArray) -> NDArray:
    return np.where(size(x) < limit, 0.0, x)
