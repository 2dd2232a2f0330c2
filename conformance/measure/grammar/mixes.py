"""Mixes: m = a x + b g(x), where g reads other places along an axis, and norms: m = x / (size of its slice + e).

a, b and e follow by least squares. g is another order of an axis, a mean, a running sum, a maximum, ...; with a = 0
it is a replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.measure.grammar.expressions import Expression, constant, expressions_of
from conformance.measure.grammar.orders import RULES, taken
from conformance.measure.grammar.sample import Change, Sample, Setting, long_axes, of_each
from conformance.zoo.bug import DoesNotApply

NONE = 1e-9
"""A part of a mix that counts as absent."""

Along = Callable[..., Any]
"""(array, axis) -> an array that broadcasts to its shape."""


def _softmax(x: NDArray, axis: int) -> NDArray:
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def _running_mean(x: NDArray, axis: int) -> NDArray:
    count = np.arange(1, x.shape[axis] + 1).reshape([-1] + [1] * (-axis - 1))
    return np.cumsum(x, axis=axis) / count


def _neighbours_within(x: NDArray, axis: int) -> NDArray:
    n = x.shape[axis]
    places = np.arange(n)
    before = np.where(places > 0, places - 1, -1)
    after = np.where(places < n - 1, places + 1, -1)
    return taken(x, before, axis) + taken(x, after, axis)


def _over(total: Along, x: NDArray, axis: int) -> NDArray:
    by = total(x, axis=axis, keepdims=True)
    return np.where(by == 0.0, x, x / np.where(by == 0.0, 1.0, by))


def _abs_sum(x: NDArray, axis: int, keepdims: bool = True) -> NDArray:
    return np.asarray(np.abs(x).sum(axis=axis, keepdims=keepdims))


def _abs_max(x: NDArray, axis: int, keepdims: bool = True) -> NDArray:
    return np.asarray(np.abs(x).max(axis=axis, keepdims=keepdims))


def _norm(x: NDArray, axis: int, keepdims: bool = True) -> NDArray:
    return np.sqrt((x * x).sum(axis=axis, keepdims=keepdims))


def _rms(x: NDArray, axis: int, keepdims: bool = True) -> NDArray:
    return np.sqrt((x * x).mean(axis=axis, keepdims=keepdims))


def _from_the_end(x: NDArray, axis: int) -> NDArray:
    return np.flip(np.cumsum(np.flip(x, axis), axis=axis), axis)


def _around(x: NDArray, axis: int) -> NDArray:
    return np.roll(x, 1, axis) + np.roll(x, -1, axis)


def _standardised(x: NDArray, axis: int) -> NDArray:
    return (x - x.mean(axis=axis, keepdims=True)) / x.std(axis=axis, keepdims=True)


def _ordered(rule: Callable[[int], NDArray], x: NDArray, axis: int) -> NDArray:
    return taken(x, rule(x.shape[axis]), axis)


ALONG: dict[str, tuple[str, Along]] = {
    "mean": ("its mean over the {} axis", partial(np.mean, keepdims=True)),
    "largest": ("its largest over the {} axis", partial(np.max, keepdims=True)),
    "smallest": ("its smallest over the {} axis", partial(np.min, keepdims=True)),
    "median": ("its median over the {} axis", partial(np.median, keepdims=True)),
    "running-sum": ("its running sum along the {} axis", np.cumsum),
    "running-mean": ("its running mean along the {} axis", _running_mean),
    "running-largest": ("its largest so far on the {} axis", np.maximum.accumulate),
    "sum-from-the-end": ("its running sum from the end of the {} axis", _from_the_end),
    "neighbours": ("both its neighbours on the {} axis, in a ring", _around),
    "neighbours-within": ("both its neighbours on the {} axis", _neighbours_within),
    "sorted": ("itself sorted along the {} axis", np.sort),
    "over-sum": ("itself over its sum on the {} axis", partial(_over, np.sum)),
    "over-mean": ("itself over its mean on the {} axis", partial(_over, np.mean)),
    "over-abs-sum": ("itself over the sum of its absolute values on the {} axis", partial(_over, _abs_sum)),
    "over-largest": ("itself over its largest on the {} axis", partial(_over, np.max)),
    "over-largest-abs": ("itself over its largest absolute value on the {} axis", partial(_over, _abs_max)),
    "over-norm": ("itself over its norm on the {} axis", partial(_over, _norm)),
    "standardised": ("itself less its mean, over its standard deviation, on the {} axis", _standardised),
    "softmax": ("its softmax along the {} axis", _softmax),
    **{name: (f"itself with its {{}} axis {words}", partial(_ordered, rule)) for name, (words, rule) in RULES.items()},
}
"""Name -> (words, what is read along an axis)."""

Reading = Callable[[NDArray], NDArray]


def mix_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Every mix that gives the largest sample that differs; the caller verifies."""
    first = max((sample for sample in samples if sample.differs), key=lambda sample: sample.known.sum())
    readings = list(_readings(long_axes(samples), len(samples[0].axes)))
    for place in _likely(first, readings):
        name, words, read = readings[place]
        try:
            found = _mixed(first, read)
            if found is not None and abs(found[1]) >= NONE:
                yield from _mixes(samples, name, words, read)
        except DoesNotApply:
            continue


def _likely(sample: Sample, readings: Sequence[tuple[str, str, Reading]]) -> Sequence[int]:
    """The readings that `_mixed` may take: all are looked at together, with twice its tolerance."""
    if not sample.known.all():
        return range(len(readings))
    x, m = sample.pairs
    others = np.full((len(readings), len(x)), np.nan)
    with any_numbers:
        for row, (_, _, read) in zip(others, readings, strict=True):
            try:
                row.reshape(sample.expected.shape)[...] = read(sample.expected)
            except DoesNotApply:
                continue
        xx, xg, gg, xm, gm = x @ x, others @ x, np.einsum("rn,rn->r", others, others), x @ m, others @ m
        determinant = xx * gg - xg * xg
        a, b = (xm * gg - gm * xg) / determinant, (gm * xx - xm * xg) / determinant
        error = np.abs(a[:, None] * x + b[:, None] * others - m).max(axis=1, initial=0.0)
        return np.flatnonzero(error <= 2.0 * sample.tolerance).tolist()


def _readings(axes: Sequence[tuple[int, str]], count: int) -> Iterator[tuple[str, str, Reading]]:
    """What is read along these axes, and pairs of them, of `count`."""
    for position, axis in axes:
        for name, (words, along) in ALONG.items():
            slug = f"{name}-{axis.replace(' ', '-')}"
            yield slug, words.format(axis), partial(along, axis=position - count)
    for (a, first), (b, second) in combinations(axes, 2):
        both = (a - count, b - count)
        pair = f"{first}-{second}".replace(" ", "-")
        mean = partial(ALONG["mean"][1], axis=both)
        yield f"mean-{pair}", f"its mean over the {first} and {second} axes", mean
        exchanged = partial(_exchanged, a=both[0], b=both[1])
        yield f"transposed-{pair}", f"itself with its {first} and {second} axes exchanged", exchanged


def _exchanged(x: NDArray, a: int, b: int) -> NDArray:
    if x.shape[a] != x.shape[b]:
        raise DoesNotApply("axes of different lengths can't be exchanged")
    return x.swapaxes(a, b)


def _mixed(sample: Sample, read: Reading) -> tuple[float, float, float] | None:
    """(a, b, relative error) of m = a x + b g(x) by least squares; None if that is not the measured array."""
    x = sample.expected
    with any_numbers:
        g = np.broadcast_to(read(x), x.shape)
    if sample.has_gaps:
        known = sample.known & ~np.isnan(g)
        x, g, m = x[known], g[known], sample.measured[known]
    else:
        x, m = sample.pairs
        g = g.ravel() if len(x) == g.size else g[sample.known]
    xx, xg, gg, xm, gm = x @ x, x @ g, g @ g, x @ m, g @ m
    with any_numbers:
        determinant = xx * gg - xg * xg
        if not determinant > 1e-9 * xx * gg or len(x) < 3:
            return None
        a, b = (xm * gg - gm * xg) / determinant, (gm * xx - xm * xg) / determinant
        error = np.abs(a * x + b * g - m).max()
    if not error <= sample.tolerance:
        return None
    return float(a), float(b), float(error / max(np.abs(m).max(), 1e-300))


def _mixes(samples: Sequence[Sample], name: str, words: str, read: Reading) -> Iterator[Change]:
    own, other, error = [], [], 1e-13
    for sample in samples:
        try:
            found = _mixed(sample, read) if sample.known.any() else None
        except DoesNotApply:
            continue
        if found is not None:
            own.append((found[0] if abs(found[0]) > NONE else 0.0, sample.setting))
            other.append((found[1] if abs(found[1]) > NONE else 0.0, sample.setting))
            error = max(error, 10.0 * found[2])
    for a in expressions_of(own, error=error)[:3]:
        for b in expressions_of(other, error=error)[:3]:
            # Without a part of g it is a factor, and another order alone is found as one.
            order = a.words == "0" and b.words == "1" and words.startswith("itself with its")
            if b.words != "0" and not order:
                yield _mix(a, b, name, words, read)


def _mix(a: Expression, b: Expression, name: str, words: str, read: Reading) -> Change:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        made = b.at(setting) * np.broadcast_to(read(array), array.shape)
        return made if a.words == "0" else a.at(setting) * array + made

    plain = b.words in ("1", "-1")
    part = words if plain else f"{b.words} times {words}"
    if a.words == "0":
        sentence = f"replaced by {'minus ' if b.words == '-1' else ''}{part}"
        if words.startswith("itself with its") and b.words != "-1":
            sentence = words.removeprefix("itself ") + ("" if plain else f", times {b.words}")
    else:
        sign = "less" if b.words == "-1" else "plus"
        sentence = f"{sign} {part}" if a.words == "1" else f"times {a.words}, {sign} {part}"
    slug = name if (a.words, b.words) == ("0", "1") else f"{a.slug}-of-it-{b.slug}-of-{name}"
    return Change(slug, sentence, apply)


# Norms --------------------------------------------------------------------------------------------------


class Norm(NamedTuple):
    """A size of slices: words, (array, axis) -> the size, and whether it is of x less its mean."""

    words: str
    size: Along
    centred: bool


NORMS: dict[str, Norm] = {
    "norm": Norm("their norm", _norm, False),
    "rms": Norm("their root mean square", _rms, False),
    "spread": Norm("their standard deviation", partial(np.std, keepdims=True), False),
    "layer-norm": Norm(
        "their standard deviation, after their mean is subtracted,", partial(np.std, keepdims=True), True
    ),
}

INSIDE = {False: "{} over the {} axis plus {}", True: "{} over the {} axis, with {} added to its square"}


def norm_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Every norm that may be meant; the caller verifies."""
    axes = samples[0].axes
    for (position, name), (slug, norm), inside in product(enumerate(axes), NORMS.items(), INSIDE):
        axis = position - len(axes)
        numbers = of_each(_added(sample, axis, norm, inside) for sample in samples if sample.differs)
        if not numbers:
            continue
        largest = max(abs(number) for number, _, _ in numbers)
        error = max(off for _, _, off in numbers) / largest if largest else None
        for number in expressions_of([(one, setting) for one, setting, _ in numbers], error=error):
            if number.words != "0" or not inside:
                yield _norm_change(slug, name, axis, inside, number)


ADDED = (0.0, 1e-12, 1e-8, 1e-6, 1e-5)
"""What layers usually add to a size."""


def usual_norms(axes: tuple[str, ...]) -> Iterator[Change]:
    """The norms over the last axis, with what is usually added."""
    for slug, inside, number in product(NORMS, INSIDE, ADDED):
        if number or not inside:
            yield _norm_change(slug, axes[-1], -1, inside, constant(number))


def _norm_change(slug: str, name: str, axis: int, inside: bool, number: Expression) -> Change:
    norm = NORMS[slug]
    words = INSIDE[inside].format(norm.words, name, number.words)
    if number.words == "0":
        words = f"{norm.words} over the {name} axis"
    slug = f"over-{slug}-of-{name}-plus-{'inside-' if inside else ''}{number.slug}"

    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        x, size = _sized(array, axis, norm)
        plus = number.at(setting)
        by = np.sqrt(size * size + plus) if inside else size + plus
        return np.where(by == 0.0, 0.0, x / np.where(by == 0.0, 1.0, by))

    return Change(slug, f"divided by {words}", apply)


def _added(sample: Sample, axis: int, norm: Norm, inside: bool) -> tuple[float, Setting, float] | None:
    """What is added to the size, the call, and how far off it may be; None if slices have no ratio, or several."""
    if sample.expected.shape[axis] < 2 or not np.isfinite(sample.expected).all():
        return None
    x, size = _sized(sample.expected, axis, norm)
    y = sample.measured
    square = (y * y).sum(axis=axis, keepdims=True)
    if not np.isfinite(square).all() or not (square > 0.0).all():
        return None
    ratio = (x * y).sum(axis=axis, keepdims=True) / square
    off_ratio = np.abs(x - ratio * y) > 10.0 * sample.tolerance * np.abs(ratio).max()
    if off_ratio.any() or not (ratio > 0.0).all():
        return None
    numbers = ratio * ratio - size * size if inside else ratio - size
    off = 1e-9 * float((ratio * ratio).max() if inside else ratio.max())
    if np.ptp(numbers) > 100.0 * off:
        return None
    number = float(np.median(numbers))
    return (0.0 if abs(number) <= off else number), sample.setting, off


def _sized(x: NDArray, axis: int, norm: Norm) -> tuple[NDArray, NDArray]:
    size = norm.size(x, axis=axis)
    return (x - x.mean(axis=axis, keepdims=True) if norm.centred else x), size
