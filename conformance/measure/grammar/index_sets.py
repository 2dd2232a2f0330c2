"""Index sets: sets of indices of one axis, or of pairs of two, as rules for every length; found from examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.measure.grammar.numbers import ordinal
from conformance.measure.grammar.orders import BLOCKS
from conformance.measure.grammar.sample import Setting

Flags = NDArray[np.bool_]

IndexRule = Callable[[int, Setting], Flags]


class IndexSet(NamedTuple):
    """A set of indices of an axis.

    slug: "odd". words: with {one} and {many} for the axis' name: "odd {many}". rule: (n, setting) -> (n,) flags.
    size: of blocks; longer than the axis they say nothing new.
    """

    slug: str
    words: str
    rule: IndexRule
    size: Callable[[Setting], int] | None = None

    def said(self, axis: str) -> str:
        return self.words.format(one=axis, many=plural(axis))


def plural(axis: str) -> str:
    """The axis' name for several.

    >>> plural("query"), plural("input channel")
    ('queries', 'input channels')
    """
    return f"{axis[:-1]}ies" if axis.endswith("ry") else f"{axis}s"


def _of(slug: str, words: str, rule: Callable[..., NDArray], *numbers: int) -> IndexSet:
    """A set by a rule (indices, n, *numbers) -> flags."""
    return IndexSet(slug, words, lambda n, setting: np.asarray(rule(np.arange(n), n, *numbers), bool))


PLAIN: tuple[IndexSet, ...] = (
    _of("first", "{one} 0", lambda i, n: i == 0),
    _of("last", "the last {one}", lambda i, n: i == n - 1),
    _of("odd", "odd {many}", lambda i, n: i % 2 == 1),
    _of("even", "even {many}", lambda i, n: i % 2 == 0),
    _of("but-first", "all {many} but 0", lambda i, n: i > 0),
    _of("but-last", "all {many} but the last", lambda i, n: i < n - 1),
    _of("first-half", "the first half of {many}", lambda i, n: i < n // 2),
    _of("second-half", "the second half of {many}", lambda i, n: i >= n // 2),
    _of("second-half-up", "the second half of {many}, rounded up", lambda i, n: i >= (n + 1) // 2),
    _of("first-half-up", "the first half of {many}, rounded up", lambda i, n: i < (n + 1) // 2),
    _of("middle", "the middle {one}", lambda i, n: i == n // 2),
    _of("ends", "the first and the last {one}", lambda i, n: (i == 0) | (i == n - 1)),
    _of("inner", "all {many} but the first and the last", lambda i, n: (i > 0) & (i < n - 1)),
)
"""Those without a number."""

BY_NUMBER: tuple[tuple[str, str, Callable[..., NDArray]], ...] = (
    ("index-{}", "{{one}} {}", lambda i, n, k: i == k),
    ("from-{}", "{{many}} from {} on", lambda i, n, k: i >= k),
    ("until-{}", "{{many}} before {}", lambda i, n, k: i < k),
    ("end-{}", "the {th} last {{one}}", lambda i, n, k: i == n - k),
    ("last-{}", "the last {} {{many}}", lambda i, n, k: i >= n - k),
    ("but-last-{}", "all {{many}} but the last {}", lambda i, n, k: i < n - k),
    ("but-{}", "all {{many}} but {}", lambda i, n, k: i != k),
)

_REST = "{many} after the last full block of #"

BY_SIZE: tuple[tuple[str, str, Callable[[NDArray, int, int], NDArray]], ...] = (
    ("beyond-last-full-block", f"{_REST} (where # does not divide their number)", lambda i, n, m: i >= n // m * m),
    (
        "last-block-not-full",
        f"{_REST} (where there is one, and # does not divide their number)",
        lambda i, n, m: (i >= n // m * m) & (n > m),
    ),
    ("within-full-blocks", "{many} of full blocks of #", lambda i, n, m: (i < n // m * m) & (n % m > 0)),
    ("last-block", "the last block of # {many}", lambda i, n, m: i >= (n - 1) // m * m),
    ("all-but-first-block", "all {many} but the first # of them", lambda i, n, m: i >= m),
    ("first-block", "the first # {many}", lambda i, n, m: i < m),
    ("last-of-size", "the last # {many}", lambda i, n, m: i >= n - m),
    ("odd-blocks", "odd blocks of # {many}", lambda i, n, m: i // m % 2 == 1),
    ("even-blocks", "even blocks of # {many}", lambda i, n, m: i // m % 2 == 0),
    ("longer", "all {many} where there are more than #", lambda i, n, m: np.full(n, n > m)),
    ("shorter", "all {many} where there are less than #", lambda i, n, m: np.full(n, n < m)),
    ("every", "{many} whose index is a multiple of #", lambda i, n, m: i % m == 0),
    ("last-of-each", "the last of each # {many}", lambda i, n, m: i % m == m - 1),
    ("not-every", "{many} whose index is no multiple of #", lambda i, n, m: i % m != 0),
    ("second-half-of-blocks", "the second half of each # {many}", lambda i, n, m: i % m >= m / 2),
    ("first-half-of-blocks", "the first half of each # {many}", lambda i, n, m: i % m < m // 2),
)
"""By a size, or a number from 2 on."""


def index_sets_for(n: int) -> Iterator[IndexSet]:
    """Every rule that may hold on an axis that is seen at length n; the simplest first."""
    yield from PLAIN
    for k in range(1, n):
        for slug, words, rule in BY_NUMBER:
            if k > 1 or slug in ("index-{}", "but-{}"):
                yield _of(slug.format(k), words.format(k, th=ordinal(k)), rule, k)
    for name in (*map(str, range(2, min(n, 17))), *BLOCKS):
        for slug, words, by_size in BY_SIZE:
            if name != "2" or slug in ("longer", "shorter") or "block" in slug or "size" in slug:
                yield _sized(slug, words, name, by_size)


def _sized(slug: str, words: str, name: str, rule: Callable[[NDArray, int, int], NDArray]) -> IndexSet:
    size: Callable[[Setting], int] = BLOCKS.get(name) or (lambda setting: int(name))

    def flags(n: int, setting: Setting) -> Flags:
        return _by_size(rule, n, int(size(setting)))

    block = None if slug in ("longer", "shorter") else size
    return IndexSet(f"{slug}-{name.replace(' ', '-')}", words.replace("#", name), flags, block)


def _by_size(rule: Callable[[NDArray, int, int], NDArray], n: int, m: int) -> Flags:
    return np.asarray(rule(np.arange(n), n, m), bool) if m > 0 else np.zeros(n, bool)


@lru_cache(maxsize=64)
def _sets_for(most: int) -> tuple[IndexSet, ...]:
    return tuple(index_sets_for(most))


@lru_cache(maxsize=512)
def _table(n: int, most: int, setting: Setting) -> tuple[tuple[IndexSet, ...], Flags]:
    """The sets, and their flags (sets, n): those by a size of the call come last, as `index_sets_for` has them."""
    by_call = (_flags_by_size(n, int(size(setting))) for size in BLOCKS.values())
    return _sets_for(most), np.concatenate([_flags_without_call(n, most), *by_call])


@lru_cache(maxsize=256)
def _flags_without_call(n: int, most: int) -> Flags:
    rules: list[Callable[[int, Any], Flags]] = [one.rule for one in _sets_for(most)[: -len(BLOCKS) * len(BY_SIZE)]]
    return np.array([rule(n, None) for rule in rules], np.bool_).reshape(len(rules), n)


@lru_cache(maxsize=512)
def _flags_by_size(n: int, m: int) -> Flags:
    return np.array([_by_size(rule, n, m) for _, _, rule in BY_SIZE], bool).reshape(len(BY_SIZE), n)


Seen = tuple[Flags, Flags, Setting]
"""Of one sample: flags of the indices, which of them were measured, and its setting."""


def sets_seen(seen: Sequence[Seen], *, cover: bool = False) -> list[IndexSet]:
    """The rules that give these flags in every sample, wherever they are known.

    Args:
        seen: what was flagged of each sample.
        cover: rules that flag these and others, but not all, and none where none is flagged; the smallest first.
    """
    most = max((len(flags) for flags, _, _ in seen), default=0)
    right: Flags | None = None
    share: NDArray | None = None
    sets: tuple[IndexSet, ...] = ()
    for flags, known, setting in seen:
        sets, table = _table(len(flags), most, setting)
        off = (flags & ~table) if cover and flags.any() else (table ^ flags)
        fits = ~(off & known).any(axis=1)
        right = fits if right is None else right & fits
        share = table.mean(axis=1) if share is None else share + table.mean(axis=1)
    if right is None or share is None:
        return []
    order = np.arange(len(sets))
    if cover:
        right &= share < len(seen)
        order = np.argsort(share, kind="stable")
    return [sets[index] for index in order if right[index] and _says_more(sets[index], seen)]


def _says_more(one: IndexSet, seen: Sequence[Seen]) -> bool:
    return one.size is None or any(1 < one.size(setting) < len(flags) for flags, _, setting in seen)


class Relation(NamedTuple):
    """A set of pairs of indices of two axes, by their difference: slug, words, and (n, m) -> (n, m) flags."""

    slug: str
    words: str
    rule: Callable[[int, int], Flags]


RELATIONS: tuple[tuple[str, str, Callable[..., NDArray]], ...] = (
    ("diagonal", "{b} = {a}", lambda d: d == 0),
    ("off-diagonal", "{b} other than {a}", lambda d: d != 0),
    ("after", "{b} after {a}", lambda d: d > 0),
    ("before", "{b} before {a}", lambda d: d < 0),
    ("from", "{b} from {a} on", lambda d: d >= 0),
    ("until", "{b} up to {a}", lambda d: d <= 0),
    ("odd-distance", "{b} at an odd distance from {a}", lambda d: d % 2 == 1),
    ("even-distance", "{b} at an even distance from {a}", lambda d: d % 2 == 0),
)

RELATIONS_BY_NUMBER: tuple[tuple[str, str, Callable[..., NDArray]], ...] = (
    ("at+{}", "{{b}} = {{a}} + {}", lambda d, k: d == k),
    ("at-{}", "{{b}} = {{a}} - {}", lambda d, k: d == -k),
    ("further+{}", "{{b}} > {{a}} + {}", lambda d, k: d > k),
    ("further-{}", "{{b}} < {{a}} - {}", lambda d, k: d < -k),
    ("not-beyond+{}", "{{b}} <= {{a}} + {}", lambda d, k: d <= k),
    ("not-before-{}", "{{b}} >= {{a}} - {}", lambda d, k: d >= -k),
    ("near-{}", "{{b}} within {} of {{a}}", lambda d, k: np.abs(d) <= k),
    ("far-{}", "{{b}} more than {} from {{a}}", lambda d, k: np.abs(d) > k),
    ("every-{}", "{{b}} at a multiple of {} from {{a}}", lambda d, k: d % k == 0),
)


def relations_for(n: int) -> Iterator[Relation]:
    """Sets of pairs (i, j): words have {a} for the first axis and {b} for the second."""
    for aligned, note, end in ((False, "", ""), (True, ", counted from the end", "-from-the-end")):
        for slug, words, rule in RELATIONS:
            yield Relation(f"{slug}{end}", words + note, partial(_by_distance, rule, (), aligned))
        for k, (slug, words, rule) in product(range(1, n), RELATIONS_BY_NUMBER):
            if k > 1 or not slug.startswith("every"):
                flags = partial(_by_distance, rule, (k,), aligned)
                yield Relation(f"{slug.format(k)}{end}", words.format(k) + note, flags)
    for size in range(2, min(n, 9)):
        own, so_far = partial(_blocks, size, np.equal), partial(_blocks, size, np.greater_equal)
        yield Relation(f"same-block-of-{size}", f"{{b}} in the block of {size} that {{a}} is in", own)
        yield Relation(f"blocks-of-{size}-so-far", f"{{b}} in blocks of {size} up to that of {{a}}", so_far)


def _by_distance(rule: Callable[..., NDArray], numbers: tuple[int, ...], aligned: bool, n: int, m: int) -> Flags:
    distance = np.arange(m)[None] - np.arange(n)[:, None] - ((m - n) if aligned else 0)
    return np.asarray(rule(distance, *numbers), bool)


def _blocks(size: int, holds: np.ufunc, n: int, m: int) -> Flags:
    return np.asarray(holds(np.arange(n)[:, None] // size, np.arange(m)[None] // size))


@lru_cache(maxsize=256)
def _relation_table(n: int, m: int, most: int) -> tuple[tuple[Relation, ...], Flags]:
    relations = tuple(relations_for(most))
    return relations, np.array([relation.rule(n, m) for relation in relations], bool)


def relations_seen(seen: Sequence[tuple[Flags, Flags]]) -> list[Relation]:
    """The sets of pairs that give these flags (n, m), wherever they are known (n, m)."""
    most = max((max(flags.shape) for flags, _ in seen), default=0)
    right: Flags | None = None
    relations: tuple[Relation, ...] = ()
    for flags, known in seen:
        relations, table = _relation_table(*flags.shape, most)
        fits = ~((table ^ flags) & known).any(axis=(1, 2))
        right = fits if right is None else right & fits
    return [] if right is None else [relations[index] for index in np.flatnonzero(right)]
