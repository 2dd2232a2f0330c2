"""Mixes: m = a x + b g(x), where g reads other places along an axis: a and b follow by least squares.

g is another order of an axis, a mean, a running sum, a maximum, ... With a = 0 it is a replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.changes.axes import taken
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.rules.orders import RULES
from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.zoo.bug import DoesNotApply

NONE = 1e-9
"""A part of a mix that counts as absent."""

Along = Callable[..., NDArray]
"""(array, axis) -> an array that broadcasts to its shape."""


def _softmax(x: NDArray, axis: int) -> NDArray:
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def _running_mean(x: NDArray, axis: int) -> NDArray:
    count = np.arange(1, x.shape[axis] + 1).reshape([-1] + [1] * (-axis - 1))
    return np.cumsum(x, axis=axis) / count


def _neighbours(x: NDArray, axis: int) -> NDArray:
    return np.roll(x, 1, axis) + np.roll(x, -1, axis)


def _neighbours_within(x: NDArray, axis: int) -> NDArray:
    n = x.shape[axis]
    places = np.arange(n)
    before = np.where(places > 0, places - 1, -1)
    after = np.where(places < n - 1, places + 1, -1)
    return taken(x, before, axis) + taken(x, after, axis)


ALONG: dict[str, tuple[str, Along]] = {
    "mean": ("its mean over the {} axis", lambda x, axis: x.mean(axis=axis, keepdims=True)),
    "largest": ("its largest over the {} axis", lambda x, axis: x.max(axis=axis, keepdims=True)),
    "smallest": ("its smallest over the {} axis", lambda x, axis: x.min(axis=axis, keepdims=True)),
    "median": ("its median over the {} axis", lambda x, axis: np.median(x, axis=axis, keepdims=True)),
    "running-sum": ("its running sum along the {} axis", lambda x, axis: np.cumsum(x, axis=axis)),
    "running-mean": ("its running mean along the {} axis", _running_mean),
    "running-largest": ("its largest so far on the {} axis", lambda x, axis: np.maximum.accumulate(x, axis=axis)),
    "sum-from-the-end": (
        "its running sum from the end of the {} axis",
        lambda x, axis: np.flip(np.cumsum(np.flip(x, axis), axis=axis), axis),
    ),
    "neighbours": ("both its neighbours on the {} axis, in a ring", _neighbours),
    "neighbours-within": ("both its neighbours on the {} axis", _neighbours_within),
    "sorted": ("itself sorted along the {} axis", lambda x, axis: np.sort(x, axis=axis)),
    "over-sum": ("itself over its sum on the {} axis", lambda x, axis: x / x.sum(axis=axis, keepdims=True)),
    "over-abs-sum": (
        "itself over the sum of its absolute values on the {} axis",
        lambda x, axis: x / np.abs(x).sum(axis=axis, keepdims=True),
    ),
    "over-largest": ("itself over its largest on the {} axis", lambda x, axis: x / x.max(axis=axis, keepdims=True)),
    "over-largest-abs": (
        "itself over its largest absolute value on the {} axis",
        lambda x, axis: x / np.abs(x).max(axis=axis, keepdims=True),
    ),
    "over-norm": (
        "itself over its norm on the {} axis",
        lambda x, axis: x / np.sqrt((x * x).sum(axis=axis, keepdims=True)),
    ),
    "standardised": (
        "itself less its mean, over its standard deviation, on the {} axis",
        lambda x, axis: (x - x.mean(axis=axis, keepdims=True)) / x.std(axis=axis, keepdims=True),
    ),
    "softmax": ("its softmax along the {} axis", _softmax),
    **{
        name: (f"itself with its {{}} axis {words}", lambda x, axis, rule=rule: taken(x, rule(x.shape[axis]), axis))
        for name, (words, rule) in RULES.items()
    },
}
"""Name -> (words, what is read along an axis)."""


def mix_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Every mix that gives the first sample that differs; the caller verifies."""
    axes = samples[0].axes
    first = max((sample for sample in samples if sample.differs), key=lambda sample: sample.known.sum())
    for name, words, read in _readings(axes):
        try:
            found = _mixed(first, read)
            if found is None or abs(found[1]) < NONE:
                continue
            yield from _mixes(samples, name, words, read)
        except DoesNotApply:
            continue


Reading = Callable[[NDArray], NDArray]


def _readings(axes: tuple[str, ...]) -> Iterator[tuple[str, str, Reading]]:
    for position, axis in enumerate(axes):
        for name, (words, along) in ALONG.items():
            yield (
                f"{name}-{axis.replace(' ', '-')}",
                words.format(axis),
                partial(along, axis=position - len(axes)),
            )
    for (a, first), (b, second) in combinations(enumerate(axes), 2):
        both = (a - len(axes), b - len(axes))
        yield (
            f"mean-{first}-{second}".replace(" ", "-"),
            f"its mean over the {first} and {second} axes",
            partial(ALONG["mean"][1], axis=both),
        )
        yield (
            f"transposed-{first}-{second}".replace(" ", "-"),
            f"itself with its {first} and {second} axes exchanged",
            partial(_exchanged, a=both[0], b=both[1]),
        )


def _exchanged(x: NDArray, a: int, b: int) -> NDArray:
    if x.shape[a] != x.shape[b]:
        raise DoesNotApply("axes of different lengths can't be exchanged")
    return x.swapaxes(a, b)


def _mixed(sample: Sample, read: Reading) -> tuple[float, float, float] | None:
    """(a, b, relative error) of m = a x + b g(x) by least squares; None if that is not the measured array."""
    x = sample.expected
    with any_numbers:
        g = np.broadcast_to(read(x), x.shape)
    known = sample.known
    if sample.has_gaps:
        known = known & ~np.isnan(g)
    x, g, m = x[known], g[known], sample.measured[known]
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
        if not sample.known.any():
            continue
        try:
            found = _mixed(sample, read)
        except DoesNotApply:
            continue
        if found is None:
            continue
        own.append((found[0] if abs(found[0]) > NONE else 0.0, sample.setting))
        other.append((found[1] if abs(found[1]) > NONE else 0.0, sample.setting))
        error = max(error, 10.0 * found[2])
    for a in expressions_of(own, error=error)[:3]:
        for b in expressions_of(other, error=error)[:3]:
            # Without a part of g it is a factor, and another order alone is found by `axes`.
            if b.words != "0" and not (a.words == "0" and b.words == "1" and words.startswith("itself with its")):
                yield _mix(a, b, name, words, read)


def _mix(a: Expression, b: Expression, name: str, words: str, read: Reading) -> Change:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        with any_numbers:
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
