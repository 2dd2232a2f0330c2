"""Profiles: factors and summands that depend on the index of one axis, or on the distance of two indices.

m / x, or m - x, is constant but along these axes; what is left is compared with simple functions of the index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.zoo.bug import DoesNotApply

Profile = Callable[[NDArray, float, int, float], NDArray]
"""(index or distance, number, length, base) -> the factor or summand."""


class Form(NamedTuple):
    """c f(i): slug, words with {i} for the index and {c} for the number, f(i, n)."""

    slug: str
    words: str
    of: Callable[[NDArray, int], NDArray]


FORMS: tuple[Form, ...] = (
    Form("index", "{c} * {i}", lambda i, n: i),
    Form("index+1", "{c} * ({i} + 1)", lambda i, n: i + 1.0),
    Form("over-index+1", "{c} / ({i} + 1)", lambda i, n: 1.0 / (i + 1.0)),
    Form("root-index+1", "{c} * sqrt({i} + 1)", lambda i, n: np.sqrt(i + 1.0)),
    Form("over-root-index+1", "{c} / sqrt({i} + 1)", lambda i, n: 1.0 / np.sqrt(i + 1.0)),
    Form("from-end", "{c} * (n - {i})", lambda i, n: n - i),
    Form("from-end-0", "{c} * (n - 1 - {i})", lambda i, n: n - 1.0 - i),
    Form("over-from-end", "{c} / (n - {i})", lambda i, n: 1.0 / (n - i)),
    Form("share", "{c} * {i} / n", lambda i, n: i / n),
    Form("share+1", "{c} * ({i} + 1) / n", lambda i, n: (i + 1.0) / n),
    Form("share-of-others", "{c} * {i} / (n - 1)", lambda i, n: i / max(n - 1.0, 1.0)),
    Form("rest", "{c} * (1 - {i} / n)", lambda i, n: 1.0 - i / n),
    Form("squared", "{c} * {i}^2", lambda i, n: i * i),
    Form("log", "{c} * ln({i} + 1)", lambda i, n: np.log(np.maximum(i, 0.0) + 1.0)),
    Form("alternating", "{c} * (-1)^{i}", lambda i, n: 1.0 - 2.0 * (i % 2)),
    Form("sine", "{c} * sin({i})", lambda i, n: np.sin(i)),
    Form("cosine", "{c} * cos({i})", lambda i, n: np.cos(i)),
    Form("alibi", "{c} * 2^(-8 ({i} + 1) / n)", lambda i, n: 2.0 ** (-8.0 * (i + 1.0) / n)),
)

DISTANCES: tuple[Form, ...] = (
    Form("distance", "{c} * ({i})", lambda d, n: d),
    Form("abs-distance", "{c} * |{i}|", lambda d, n: np.abs(d)),
    Form("distance-back", "{c} * max(0, -({i}))", lambda d, n: np.maximum(-d, 0.0)),
    Form("squared-distance", "{c} * ({i})^2", lambda d, n: d * d),
    Form("over-distance+1", "{c} / (|{i}| + 1)", lambda d, n: 1.0 / (np.abs(d) + 1.0)),
    Form("log-distance", "{c} * ln(|{i}| + 1)", lambda d, n: np.log1p(np.abs(d))),
)

WAYS = ("times", "plus")

FAR = 0.05
"""Ratios are read where the expected number is at least this share of the largest one."""


def _error(samples: Sequence[Sample]) -> float:
    """The relative error of what is read off."""
    return max(1e-8, 100.0 * max(sample.unit for sample in samples))


def profile_changes(samples: Sequence[Sample], *, by_rule: bool = True, roughly: bool = False) -> Iterator[Change]:
    """Every profile that may be meant; the caller verifies.

    Args:
        samples: at least one differs.
        by_rule: functions of the index; else the numbers as they were read, for the indices seen alone.
        roughly: most elements of an index have its factor or summand, but not all.
    """
    axes = samples[0].axes
    for way in WAYS:
        rests = [_rest(sample, way) for sample in samples]
        for position, name in enumerate(axes):
            axis = position - len(axes)
            constant = _common_but if roughly else _constant_but
            read = [constant(rest, sample, (axis,), way) for rest, sample in zip(rests, samples, strict=True)]
            if all(one is not None for one in read):
                found = [one for one in read if one is not None]
                yield from _of_index(samples, found, way, name, axis) if by_rule else _as_seen(found, way, name, axis)
        if not by_rule or roughly:
            continue
        for (i, first), (j, second) in permutations(enumerate(axes), 2):
            a, b = i - len(axes), j - len(axes)
            if a > b:
                continue
            read = [_constant_but(rest, sample, (a, b), way) for rest, sample in zip(rests, samples, strict=True)]
            if all(one is not None for one in read):
                yield from _of_distance(samples, [one for one in read if one is not None], way, (first, second), (a, b))


def _rest(sample: Sample, way: str) -> NDArray:
    with any_numbers:
        if way == "plus":
            return sample.measured - sample.expected
        far = np.abs(sample.expected) > FAR * np.nanmax(np.abs(sample.expected))
        return np.where(far, sample.measured / sample.expected, np.nan)


def _constant_but(rest: NDArray, sample: Sample, axes: tuple[int, ...], way: str) -> NDArray | None:
    """What is left along these axes, if it is constant along all others; NaN where it is not known."""
    others = tuple(axis for axis in range(-rest.ndim, 0) if axis not in axes)
    known = ~np.isnan(rest)
    low = np.where(known, rest, np.inf).min(axis=others)
    high = np.where(known, rest, -np.inf).max(axis=others)
    some = known.any(axis=others)
    tolerance = (
        sample.tolerance if way == "plus" else 100.0 / FAR * sample.unit * float(np.nanmax(np.abs(rest), initial=0.0))
    )
    with any_numbers:
        if not (high - low <= 2.0 * tolerance)[some].all() or not some.any():
            return None
        return np.where(some, 0.5 * (low + high), np.nan)


def _common_but(rest: NDArray, sample: Sample, axes: tuple[int, ...], way: str) -> NDArray | None:
    """What most elements have in common at each index of an axis; None if there is no such number."""
    (axis,) = axes
    if rest.shape[axis] < 2:
        return None
    found = []
    for row in np.moveaxis(rest, axis, 0).reshape(rest.shape[axis], -1):
        known = row[np.isfinite(row)]
        number = mode(known[known != 0.0] if way == "times" else known)
        if number is None:
            return None
        found.append(number)
    return np.array(found)


LEAST_SHARE = 0.3
"""The share of the elements that must have one ratio for it to be tried as a factor of all."""


def mode(numbers: NDArray) -> float | None:
    """The number that at least LEAST_SHARE of them are, within 1e-8; None if there is none."""
    if len(numbers) < 4:
        return None
    ordered = np.sort(numbers)
    width = max(2, int(np.ceil(LEAST_SHARE * len(ordered))))
    spread = ordered[width - 1 :] - ordered[: len(ordered) - width + 1]
    place = int(spread.argmin())
    middle = float(ordered[place + width // 2])
    return middle if spread[place] <= 1e-8 * max(abs(middle), 1e-3) else None


def _of_index(samples: Sequence[Sample], read: Sequence[NDArray], way: str, name: str, axis: int) -> Iterator[Change]:
    if max(np.nanmax(one) - np.nanmin(one) for one in read) <= 1e-9:
        return
    lengths = [one.shape[0] for one in read]
    indices = [np.arange(n, dtype=float) for n in lengths]
    for form in FORMS:
        functions = [form.of(i, n) for i, n in zip(indices, lengths, strict=True)]
        for c in _constants(samples, read, functions):
            words = form.words.format(c=c.words, i=f"{name} index").removeprefix("1 * ")
            yield _change(way, f"{name}-{form.slug}-{c.slug}", words, _at_index(axis, form, c))
    yield from _bent(samples, read, indices, way, name, axis)


def _bent(
    samples: Sequence[Sample], read: Sequence[NDArray], indices: Sequence[NDArray], way: str, name: str, axis: int
) -> Iterator[Change]:
    """A + b i, and c r^i."""
    for words, of, back in (
        ("{a} + {b} * {i}", lambda y: y, lambda a, b, i: a + b * i),
        ("{a} * {b}^{i}", np.log, lambda a, b, i: a * b**i),
    ):
        first, slope = [], []
        for sample, one, i in zip(samples, read, indices, strict=True):
            with any_numbers:
                known = np.isfinite(of(one))
                if known.sum() < 2:
                    continue
                b, a = np.polyfit(i[known], of(one)[known], 1) if known.sum() > 1 else (math.nan, math.nan)
            power = words.startswith("{a} * {b}")
            first.append((float(np.exp(a)) if power else float(a), sample.setting))
            slope.append((float(np.exp(b)) if power else float(b), sample.setting))
        for a in expressions_of(first, error=_error(samples))[:2]:
            for b in expressions_of(slope, error=_error(samples))[:2]:
                said = words.format(a=a.words, b=b.words, i=f"{name} index").removeprefix("1 * ")
                form = Form("", "", lambda i, n: i)
                yield _change(way, f"{name}-{said}".replace(" ", ""), said, _at_two(axis, form, a, b, back))


def _at_two(
    axis: int, form: Form, a: Expression, b: Expression, back: Callable[[float, float, NDArray], NDArray]
) -> Callable[[tuple[int, ...], Setting], NDArray]:
    def profile(shape: tuple[int, ...], setting: Setting) -> NDArray:
        return _wide(back(a.at(setting), b.at(setting), np.arange(shape[axis], dtype=float)), shape, axis)

    return profile


def _as_seen(read: Sequence[NDArray], way: str, name: str, axis: int) -> Iterator[Change]:
    """A table by index, where all lengths agree on it."""
    longest = max(read, key=len)
    if len(longest) > 12 or any(
        not np.allclose(one, longest[: len(one)], rtol=1e-8, atol=1e-10, equal_nan=True) for one in read
    ):
        return
    if np.isnan(longest).any():
        return
    said = ", ".join(f"{value:.6g}" for value in longest)

    def profile(shape: tuple[int, ...], setting: Setting) -> NDArray:
        if shape[axis] > len(longest):
            raise DoesNotApply(f"the {way} of index {shape[axis] - 1} was not read")
        return _wide(longest[: shape[axis]], shape, axis)

    yield _change(way, f"{name}-table-{said}".replace(", ", "-"), f"{said} for each {name} in turn", profile)


def _of_distance(
    samples: Sequence[Sample], read: Sequence[NDArray], way: str, names: tuple[str, str], axes: tuple[int, int]
) -> Iterator[Change]:
    for aligned in (False, True):
        for form in DISTANCES:
            functions = [form.of(_distance(one.shape[0], one.shape[1], aligned), one.shape[1]) for one in read]
            for c in _constants(samples, read, functions):
                said = f"{names[1]} index - {names[0]} index" + (", both from the end" if aligned else "")
                words = form.words.format(c=c.words, i=said).removeprefix("1 * ")
                slug = f"{names[1]}-{names[0]}-{form.slug}-{c.slug}{'-from-the-end' if aligned else ''}"
                yield _change(way, slug, words, _at_distance(axes, form, c, aligned))


def _distance(n: int, m: int, aligned: bool) -> NDArray:
    return np.arange(m)[None] - np.arange(n, dtype=float)[:, None] - ((m - n) if aligned else 0)


def _constants(samples: Sequence[Sample], read: Sequence[NDArray], forms: Sequence[NDArray]) -> list[Expression]:
    """C of c f, by least squares, if that is what was read in every sample."""
    numbers = []
    for sample, one, form in zip(samples, read, forms, strict=True):
        known = ~np.isnan(one)
        f, y = form[known], one[known]
        square = float(f @ f)
        if not square:
            if np.abs(y).max(initial=0.0) > 1e-9:
                return []
            continue
        c = float(f @ y) / square
        if np.abs(c * f - y).max() > _error(samples) * max(1e-300, float(np.abs(y).max())) + sample.tolerance:
            return []
        numbers.append((c, sample.setting))
    return expressions_of(numbers, error=_error(samples))[:3]


def _at_index(axis: int, form: Form, c: Expression) -> Callable[[tuple[int, ...], Setting], NDArray]:
    def profile(shape: tuple[int, ...], setting: Setting) -> NDArray:
        n = shape[axis]
        return _wide(c.at(setting) * form.of(np.arange(n, dtype=float), n), shape, axis)

    return profile


def _at_distance(
    axes: tuple[int, int], form: Form, c: Expression, aligned: bool
) -> Callable[[tuple[int, ...], Setting], NDArray]:
    def profile(shape: tuple[int, ...], setting: Setting) -> NDArray:
        n, m = shape[axes[0]], shape[axes[1]]
        return _wide(c.at(setting) * form.of(_distance(n, m, aligned), m), shape, *axes)

    return profile


def _wide(array: NDArray, shape: tuple[int, ...], *axes: int) -> NDArray:
    wide = [1] * len(shape)
    for axis in axes:
        wide[axis] = shape[axis]
    return np.asarray(array).reshape(wide)


def _change(way: str, slug: str, words: str, profile: Callable[[tuple[int, ...], Setting], NDArray]) -> Change:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        along = profile(array.shape, setting)
        return array * along if way == "times" else array + along

    return Change(f"{way}-{slug}".replace(" ", "-"), f"{way} {words}", apply)
