"""Places: sets of indices of one axis, or of pairs of two, as rules for every length; they are found from examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.numbers import ordinal
from conformance.experiments.changes.rules.orders import SIZES
from conformance.experiments.changes.sample import Setting

Flags = NDArray[np.bool_]

PlaceRule = Callable[[int, Setting], Flags]


class Place(NamedTuple):
    """A set of indices of an axis.

    slug: "odd"; words: with {one} and {many} for the axis' name: "odd {many}"; rule: (n, setting) -> (n,) flags.
    """

    slug: str
    words: str
    rule: PlaceRule
    size: Callable[[Setting], int] | None = None
    """Of blocks: longer than the axis they say nothing new."""

    def said(self, axis: str) -> str:
        return self.words.format(one=axis, many=plural(axis))


def plural(axis: str) -> str:
    """The axis' name for several.

    >>> plural("query"), plural("input channel")
    ('queries', 'input channels')
    """
    return f"{axis[:-1]}ies" if axis.endswith("ry") else f"{axis}s"


def _of(slug: str, words: str, rule: Callable[..., NDArray], *numbers: int) -> Place:
    """A place by a rule (indices, n, *numbers) -> flags."""
    return Place(slug, words, lambda n, setting: np.asarray(rule(np.arange(n), n, *numbers), bool))


def _sized(slug: str, words: str, name: str, rule: Callable[[NDArray, int, int], NDArray]) -> Place:
    """A place that depends on one of SIZES, or on a number."""
    size = SIZES.get(name)

    def flags(n: int, setting: Setting) -> Flags:
        m = int(name) if size is None else int(size(setting))
        return np.asarray(rule(np.arange(n), n, m), bool) if m > 0 else np.zeros(n, bool)

    block = None if slug in ("longer", "shorter") else (size or (lambda setting: int(name)))
    return Place(f"{slug}-{name.replace(' ', '-')}", words.replace("#", name), flags, block)


def places_for(n: int) -> Iterator[Place]:
    """Every rule that may hold on an axis that is seen at length n; the simplest first."""
    yield _of("first", "{one} 0", lambda i, n: i == 0)
    yield _of("last", "the last {one}", lambda i, n: i == n - 1)
    yield _of("odd", "odd {many}", lambda i, n: i % 2 == 1)
    yield _of("even", "even {many}", lambda i, n: i % 2 == 0)
    yield _of("but-first", "all {many} but 0", lambda i, n: i > 0)
    yield _of("but-last", "all {many} but the last", lambda i, n: i < n - 1)
    yield _of("first-half", "the first half of {many}", lambda i, n: i < n // 2)
    yield _of("second-half", "the second half of {many}", lambda i, n: i >= n // 2)
    yield _of("second-half-up", "the second half of {many}, rounded up", lambda i, n: i >= (n + 1) // 2)
    yield _of("first-half-up", "the first half of {many}, rounded up", lambda i, n: i < (n + 1) // 2)
    yield _of("middle", "the middle {one}", lambda i, n: i == n // 2)
    yield _of("ends", "the first and the last {one}", lambda i, n: (i == 0) | (i == n - 1))
    yield _of("inner", "all {many} but the first and the last", lambda i, n: (i > 0) & (i < n - 1))
    for k in range(1, n):
        yield _of(f"index-{k}", f"{{one}} {k}", lambda i, n, k: i == k, k)
    for k in range(2, n):
        yield _of(f"from-{k}", f"{{many}} from {k} on", lambda i, n, k: i >= k, k)
        yield _of(f"until-{k}", f"{{many}} before {k}", lambda i, n, k: i < k, k)
        yield _of(f"end-{k}", f"the {ordinal(k)} last {{one}}", lambda i, n, k: i == n - k, k)
        yield _of(f"last-{k}", f"the last {k} {{many}}", lambda i, n, k: i >= n - k, k)
        yield _of(f"but-last-{k}", f"all {{many}} but the last {k}", lambda i, n, k: i < n - k, k)
        yield _of(f"but-{k - 1}", f"all {{many}} but {k - 1}", lambda i, n, k: i != k - 1, k)
    for name in (*map(str, range(2, min(n, 17))), *SIZES):
        yield from _by_size(name)


def _by_size(name: str) -> Iterator[Place]:
    yield _sized(
        "beyond-last-full-block",
        "{many} after the last full block of # (where # does not divide their number)",
        name,
        lambda i, n, m: i >= n // m * m,
    )
    yield _sized(
        "last-block-not-full",
        "{many} after the last full block of # (where there is one, and # does not divide their number)",
        name,
        lambda i, n, m: (i >= n // m * m) & (n > m),
    )
    yield _sized(
        "within-full-blocks", "{many} of full blocks of #", name, lambda i, n, m: (i < n // m * m) & (n % m > 0)
    )
    yield _sized("last-block", "the last block of # {many}", name, lambda i, n, m: i >= (n - 1) // m * m)
    yield _sized("all-but-first-block", "all {many} but the first # of them", name, lambda i, n, m: i >= m)
    yield _sized("first-block", "the first # {many}", name, lambda i, n, m: i < m)
    yield _sized("last-of-size", "the last # {many}", name, lambda i, n, m: i >= n - m)
    yield _sized("odd-blocks", "odd blocks of # {many}", name, lambda i, n, m: i // m % 2 == 1)
    yield _sized("even-blocks", "even blocks of # {many}", name, lambda i, n, m: i // m % 2 == 0)
    yield _sized("longer", "all {many} where there are more than #", name, lambda i, n, m: np.full(n, n > m))
    yield _sized("shorter", "all {many} where there are less than #", name, lambda i, n, m: np.full(n, n < m))
    if name != "2":  # these would be the odd and the even ones
        yield _sized("every", "{many} whose index is a multiple of #", name, lambda i, n, m: i % m == 0)
        yield _sized("last-of-each", "the last of each # {many}", name, lambda i, n, m: i % m == m - 1)
        yield _sized("not-every", "{many} whose index is no multiple of #", name, lambda i, n, m: i % m != 0)
        yield _sized("second-half-of-blocks", "the second half of each # {many}", name, lambda i, n, m: i % m >= m / 2)
        yield _sized("first-half-of-blocks", "the first half of each # {many}", name, lambda i, n, m: i % m < m // 2)


@lru_cache(maxsize=512)
def _table(n: int, most: int, setting: Setting) -> tuple[tuple[Place, ...], Flags]:
    places = tuple(places_for(most))
    return places, np.array([place.rule(n, setting) for place in places], bool).reshape(len(places), n)


Seen = tuple[Flags, Flags, Setting]
"""Of one sample: flags of the indices, which of them were measured, and its setting."""


def places_seen(seen: Sequence[Seen], *, cover: bool = False) -> list[Place]:
    """The rules that give these flags in every sample, wherever they are known.

    Args:
        seen: what was flagged of each sample.
        cover: rules that flag these and others, but not all, and none where none is flagged; the smallest first.
    """
    most = max(len(flags) for flags, _, _ in seen)
    right: Flags | None = None
    more: NDArray | None = None
    places: tuple[Place, ...] = ()
    for flags, known, setting in seen:
        places, table = _table(len(flags), most, setting)
        off = (flags & ~table) if cover and flags.any() else (table ^ flags)
        fits = ~(off & known).any(axis=1)
        right = fits if right is None else right & fits
        more = table.mean(axis=1) if more is None else more + table.mean(axis=1)
    if cover and right is not None and more is not None:
        right &= more < len(seen)
        order = np.argsort(more, kind="stable")
        return [places[index] for index in order if right[index] and _says_more(places[index], seen)]
    if right is None:
        return []
    return [place for place in (places[index] for index in np.flatnonzero(right)) if _says_more(place, seen)]


def _says_more(place: Place, seen: Sequence[Seen]) -> bool:
    return place.size is None or any(1 < place.size(setting) < len(flags) for flags, _, setting in seen)


class Relation(NamedTuple):
    """A set of pairs of indices of two axes, by their difference: slug, words, and (n, m, setting) -> (n, m) flags."""

    slug: str
    words: str
    rule: Callable[[int, int], Flags]


def relations_for(n: int) -> Iterator[Relation]:
    """Sets of pairs (i, j): words have {a} for the first axis and {b} for the second."""
    for aligned, note in ((False, ""), (True, ", counted from the end")):

        def relation(
            slug: str,
            words: str,
            rule: Callable[..., NDArray],
            *numbers: int,
            aligned: bool = aligned,
            note: str = note,
        ) -> Relation:
            def flags(n: int, m: int) -> Flags:
                distance = np.arange(m)[None] - np.arange(n)[:, None] - ((m - n) if aligned else 0)
                return np.asarray(rule(distance, *numbers), bool)

            return Relation(f"{slug}{'-from-the-end' if aligned else ''}", words + note, flags)

        yield relation("diagonal", "{b} = {a}", lambda d: d == 0)
        yield relation("off-diagonal", "{b} other than {a}", lambda d: d != 0)
        yield relation("after", "{b} after {a}", lambda d: d > 0)
        yield relation("before", "{b} before {a}", lambda d: d < 0)
        yield relation("from", "{b} from {a} on", lambda d: d >= 0)
        yield relation("until", "{b} up to {a}", lambda d: d <= 0)
        yield relation("odd-distance", "{b} at an odd distance from {a}", lambda d: d % 2 == 1)
        yield relation("even-distance", "{b} at an even distance from {a}", lambda d: d % 2 == 0)
        for k in range(1, n):
            yield relation(f"at+{k}", f"{{b}} = {{a}} + {k}", lambda d, k: d == k, k)
            yield relation(f"at-{k}", f"{{b}} = {{a}} - {k}", lambda d, k: d == -k, k)
            yield relation(f"further+{k}", f"{{b}} > {{a}} + {k}", lambda d, k: d > k, k)
            yield relation(f"further-{k}", f"{{b}} < {{a}} - {k}", lambda d, k: d < -k, k)
            yield relation(f"not-beyond+{k}", f"{{b}} <= {{a}} + {k}", lambda d, k: d <= k, k)
            yield relation(f"not-before-{k}", f"{{b}} >= {{a}} - {k}", lambda d, k: d >= -k, k)
            yield relation(f"near-{k}", f"{{b}} within {k} of {{a}}", lambda d, k: np.abs(d) <= k, k)
            yield relation(f"far-{k}", f"{{b}} more than {k} from {{a}}", lambda d, k: np.abs(d) > k, k)


@lru_cache(maxsize=256)
def _relation_table(n: int, m: int, most: int) -> tuple[tuple[Relation, ...], Flags]:
    relations = tuple(relations_for(most))
    return relations, np.array([relation.rule(n, m) for relation in relations], bool)


def relations_seen(seen: Sequence[tuple[Flags, Flags]]) -> list[Relation]:
    """The sets of pairs that give these flags (n, m), wherever they are known (n, m)."""
    most = max(max(flags.shape) for flags, _ in seen)
    right: Flags | None = None
    relations: tuple[Relation, ...] = ()
    for flags, known in seen:
        relations, table = _relation_table(*flags.shape, most)
        fits = ~((table ^ flags) & known).any(axis=(1, 2))
        right = fits if right is None else right & fits
    return [] if right is None else [relations[index] for index in np.flatnonzero(right)]
