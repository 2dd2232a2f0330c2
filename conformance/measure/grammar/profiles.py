"""Profiles: a number for each index of an axis, or for each distance of two indices, that multiplies or is added.

m / x, or m - x, is constant but along these axes. What is left is compared with simple functions of the index; if it
is none of them it is a table, which holds for the indices that were seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.measure.grammar.expressions import Expression, expressions_of
from conformance.measure.grammar.sample import Change, Sample, Setting, long_axes, of_each
from conformance.zoo.bug import DoesNotApply


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
"""Functions of one index."""

DISTANCES: tuple[Form, ...] = (
    Form("distance", "{c} * ({i})", lambda d, n: d),
    Form("abs-distance", "{c} * |{i}|", lambda d, n: np.abs(d)),
    Form("distance-back", "{c} * max(0, -({i}))", lambda d, n: np.maximum(-d, 0.0)),
    Form("squared-distance", "{c} * ({i})^2", lambda d, n: d * d),
    Form("over-distance+1", "{c} / (|{i}| + 1)", lambda d, n: 1.0 / (np.abs(d) + 1.0)),
    Form("log-distance", "{c} * ln(|{i}| + 1)", lambda d, n: np.log1p(np.abs(d))),
    Form("at-0", "{c} where {i} = 0", lambda d, n: (d == 0.0) * 1.0),
    Form("ahead", "{c} where {i} > 0", lambda d, n: (d > 0.0) * 1.0),
    Form("behind", "{c} where {i} < 0", lambda d, n: (d < 0.0) * 1.0),
    Form("1-behind", "{c} where {i} = -1", lambda d, n: (d == -1.0) * 1.0),
    Form("1-ahead", "{c} where {i} = 1", lambda d, n: (d == 1.0) * 1.0),
)
"""Functions of the difference of two indices."""

WAYS = ("times", "plus")

FAR = 0.05
"""Ratios are read where the expected number is at least this share of the largest one."""

LONGEST_TABLE = 12

Shape = tuple[int, ...]


def _error(samples: Sequence[Sample]) -> float:
    """The relative error of what is read off."""
    return max(1e-8, 100.0 * max(sample.unit for sample in samples))


def profile_changes(samples: Sequence[Sample], *, by_rule: bool = True) -> Iterator[Change]:
    """Every profile that may be meant; the caller verifies.

    Args:
        samples: at least one differs.
        by_rule: functions of the index; else the numbers as they were read, for the indices seen alone.
    """
    axes, count = long_axes(samples), len(samples[0].axes)
    for way in WAYS:
        rests = [_rest(sample, way) for sample in samples]
        for position, name in axes:
            axis = position - count
            found = of_each(_constant_but(rest, one, (axis,), way) for rest, one in zip(rests, samples, strict=True))
            if found is not None:
                rules = _of_index(samples, found, name) if by_rule else _table(found, name)
                for slug, words, profile in rules:
                    yield _change(way, f"{name}-{slug}", words, partial(_on, axis, profile))
        for (i, first), (j, second) in combinations(axes, 2) if by_rule else ():
            a, b = i - count, j - count
            found = of_each(_constant_but(rest, one, (a, b), way) for rest, one in zip(rests, samples, strict=True))
            if found is not None:
                yield from _of_distance(samples, found, way, (first, second), (a, b))


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
    largest = float(np.nanmax(np.abs(rest), initial=0.0))
    tolerance = sample.tolerance if way == "plus" else 100.0 / FAR * sample.unit * largest
    with any_numbers:
        if not (high - low <= 2.0 * tolerance)[some].all() or not some.any():
            return None
        return np.where(some, 0.5 * (low + high), np.nan)


# Along one axis -----------------------------------------------------------------------------------------

Profile = Callable[[int, Setting], NDArray]
"""(length, setting) -> a number for each index."""


def _of_index(samples: Sequence[Sample], read: Sequence[NDArray], name: str) -> Iterator[tuple[str, str, Profile]]:
    """(slug, words, profile) of each function of an index that gives what was read."""
    if max(np.nanmax(one) - np.nanmin(one) for one in read) <= 1e-9:
        return
    for form in FORMS:
        made = [form.of(np.arange(len(one), dtype=float), len(one)) for one in read]
        for c in _constants(samples, read, made):
            words = form.words.format(c=c.words, i=f"{name} index").removeprefix("1 * ")
            yield f"{form.slug}-{c.slug}", words, partial(_times_form, c, form)
    for words, log, back in (
        ("{a} + {b} * {i}", False, lambda a, b, i: a + b * i),
        ("{a} * {b}^{i}", True, lambda a, b, i: a * b**i),
    ):
        for a, b in _lines(samples, read, log=log):
            said = words.format(a=a.words, b=b.words, i=f"{name} index").removeprefix("1 * ")
            yield said.replace(" ", ""), said, partial(_of_line, a, b, back)


def _times_form(c: Expression, form: Form, n: int, setting: Setting) -> NDArray:
    return c.at(setting) * form.of(np.arange(n, dtype=float), n)


def _of_line(
    a: Expression, b: Expression, back: Callable[[float, float, NDArray], NDArray], n: int, setting: Setting
) -> NDArray:
    return back(a.at(setting), b.at(setting), np.arange(n, dtype=float))


def _lines(samples: Sequence[Sample], read: Sequence[NDArray], *, log: bool) -> Iterator[tuple[Expression, Expression]]:
    """A and b of a + b i, or of a b^i."""
    first, slope = [], []
    for sample, one in zip(samples, read, strict=True):
        with any_numbers:
            y = np.log(one) if log else one
        known = np.isfinite(y)
        if known.sum() < 2:
            continue
        b, a = np.polyfit(np.arange(len(y))[known], y[known], 1)
        first.append((float(np.exp(a)) if log else float(a), sample.setting))
        slope.append((float(np.exp(b)) if log else float(b), sample.setting))
    yield from product(
        expressions_of(first, error=_error(samples))[:2], expressions_of(slope, error=_error(samples))[:2]
    )


def _table(read: Sequence[NDArray], name: str) -> Iterator[tuple[str, str, Profile]]:
    """The numbers as they were read, where all lengths agree on them."""
    longest = max(read, key=len)
    if len(longest) > LONGEST_TABLE or np.isnan(longest).any():
        return
    if any(not np.allclose(one, longest[: len(one)], rtol=1e-8, atol=1e-10, equal_nan=True) for one in read):
        return
    said = ", ".join(f"{value:.6g}" for value in longest)

    def profile(n: int, setting: Setting) -> NDArray:
        if n > len(longest):
            raise DoesNotApply(f"the number of index {n - 1} was not read")
        return longest[:n]

    yield f"table-{said}".replace(", ", "-"), f"{said} for each {name} in turn", profile


def _on(axis: int, profile: Profile, shape: Shape, setting: Setting) -> NDArray:
    return np.asarray(profile(shape[axis], setting)).reshape([-1, *(1,) * (-axis - 1)])


# Along two axes -----------------------------------------------------------------------------------------


def _of_distance(
    samples: Sequence[Sample], read: Sequence[NDArray], way: str, names: tuple[str, str], axes: tuple[int, int]
) -> Iterator[Change]:
    for aligned, form in product((False, True), DISTANCES):
        made = [form.of(_distance(one.shape[0], one.shape[1], aligned), one.shape[1]) for one in read]
        for c in _constants(samples, read, made):
            said = f"{names[1]} index - {names[0]} index" + (", both from the end" if aligned else "")
            words = form.words.format(c=c.words, i=said).removeprefix("1 * ")
            slug = f"{names[1]}-{names[0]}-{form.slug}-{c.slug}{'-from-the-end' if aligned else ''}"
            yield _change(way, slug, words, _at_distance(axes, form, c, aligned))


def _distance(n: int, m: int, aligned: bool) -> NDArray:
    return np.arange(m)[None] - np.arange(n, dtype=float)[:, None] - ((m - n) if aligned else 0)


def _at_distance(
    axes: tuple[int, int], form: Form, c: Expression, aligned: bool
) -> Callable[[Shape, Setting], NDArray]:
    def profile(shape: Shape, setting: Setting) -> NDArray:
        n, m = (shape[axis] for axis in axes)
        wide = [size if axis - len(shape) in axes else 1 for axis, size in enumerate(shape)]
        return (c.at(setting) * form.of(_distance(n, m, aligned), m)).reshape(wide)

    return profile


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
        largest = max(1e-300, float(np.abs(y).max()))
        if np.abs(c * f - y).max() > _error(samples) * largest + sample.tolerance:
            return []
        numbers.append((c, sample.setting))
    return expressions_of(numbers, error=_error(samples))[:3]


def _change(way: str, slug: str, words: str, profile: Callable[[Shape, Setting], NDArray]) -> Change:
    both = np.multiply if way == "times" else np.add
    return Change(f"{way}-{slug}", f"{way} {words}", lambda x, axes, setting: both(x, profile(x.shape, setting)))


# Patterns of heads, queries and keys ----------------------------------------------------------------------


def pattern_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """What is added to scores (.., H, Lq, Lk) that are known up to a number for each row.

    A function of the distance of key and query, or of the key's index, times a number for each head.
    """
    if samples[0].axes[-3:] != ("head", "query", "key") or not any(sample.differs for sample in samples):
        return
    for aligned, form in product((False, True), DISTANCES):
        end = " (queries and keys aligned at their ends)" if aligned else ""
        words = form.words.format(c="{c}", i="key index - query index") + end
        slug = f"pattern-{form.slug}{'-from-the-end' if aligned else ''}"
        yield from _of_pattern(samples, slug, words, partial(_by_distance, form, aligned))
    for form in (FORMS[0], FORMS[8]):
        words = form.words.format(c="{c}", i="key index")
        yield from _of_pattern(samples, f"pattern-key-{form.slug}", words, partial(_by_key, form))


Grid = Callable[[int, int], NDArray]
"""(Lq, Lk) -> what a number of each head multiplies."""


def _by_distance(form: Form, aligned: bool, n: int, m: int) -> NDArray:
    return form.of(_distance(n, m, aligned), m)


def _by_key(form: Form, n: int, m: int) -> NDArray:
    return np.broadcast_to(form.of(np.arange(m, dtype=float), m), (n, m))


def _of_pattern(samples: Sequence[Sample], slug: str, words: str, grid: Grid) -> Iterator[Change]:
    read: list[NDArray] = []
    for sample in samples:
        surplus = sample.measured - sample.expected
        surplus = surplus - surplus.mean(axis=-1, keepdims=True)
        basis = grid(*surplus.shape[-2:])
        basis = basis - basis.mean(axis=-1, keepdims=True)
        square = float((basis * basis).sum())
        if not square or not np.isfinite(surplus).all():
            return
        numbers = (surplus * basis).sum(axis=(-2, -1)) / square  # (.., H)
        if np.abs(surplus - numbers[..., None, None] * basis).max() > 10.0 * sample.tolerance:
            return
        if np.ptp(numbers, axis=0).max(initial=0.0) > 1e-8 * np.abs(numbers).max(initial=1e-300):
            return
        read.append(numbers.reshape(-1, numbers.shape[-1])[0])
    for name, said, profile in of_heads(samples, read):
        yield _change("plus", f"{slug}-{name}", words.format(c=said), partial(_pattern, profile, grid))


def of_heads(samples: Sequence[Sample], read: Sequence[NDArray]) -> Iterator[tuple[str, str, Profile]]:
    if all(np.ptp(one) <= 1e-8 * np.abs(one).max(initial=1e-300) for one in read):
        numbers = [(float(one[0]), sample.setting) for one, sample in zip(read, samples, strict=True)]
        for c in expressions_of(numbers, error=1e-8)[:2]:
            yield c.slug, c.words, partial(_same_for_all, c)
        return
    rules = list(_of_index(samples, read, "head"))
    yield from ((slug, f"({words})", profile) for slug, words, profile in rules or _table(read, "head"))


def _same_for_all(c: Expression, n: int, setting: Setting) -> NDArray:
    return np.full(n, c.at(setting))


def _pattern(profile: Profile, grid: Grid, shape: Shape, setting: Setting) -> NDArray:
    return profile(shape[-3], setting)[:, None, None] * grid(*shape[-2:])
