"""Orders: rules that say, for every length of an axis, which index each place reads; some are read off.

Each family gives rules for a length seen; a rule (n, setting) -> order raises DoesNotApply where it has no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.sample import Setting
from conformance.zoo.bug import DoesNotApply

Indices = NDArray[np.int64]
"""(n,): the index that each of n places reads; -1 reads a 0."""

SizedRule = Callable[[int, Setting], Indices]


class Order(NamedTuple):
    """One rule for an axis: a name, words to be read after "with its head axis", and the rule."""

    slug: str
    words: str
    rule: SizedRule


def _even(n: int) -> None:
    if n % 2:
        raise DoesNotApply("an odd length has no halves")


def _halves(n: int) -> Indices:
    _even(n)
    return np.roll(np.arange(n), n // 2)


def _rolled_by_half(n: int) -> Indices:
    return np.roll(np.arange(n), n // 2)


def _pairs(n: int) -> Indices:
    _even(n)
    return np.arange(n) ^ 1


def _swapped(first: int, second: int) -> Callable[[int], Indices]:
    def rule(n: int) -> Indices:
        order = np.arange(n)
        if max(first, -first - 1, second, -second - 1) < n:
            order[[first, second]] = order[[second, first]]
        return order

    return rule


def _shifted(by: int) -> Callable[[int], Indices]:
    def rule(n: int) -> Indices:
        order = np.arange(n) + by
        return np.where((order < 0) | (order >= n), -1, order)

    return rule


def _rolled(by: int) -> Callable[[int], Indices]:
    return lambda n: np.roll(np.arange(n), by)


def _clamped(by: int) -> Callable[[int], Indices]:
    return lambda n: np.clip(np.arange(n) + by, 0, n - 1)


def _everywhere(index: int) -> Callable[[int], Indices]:
    return lambda n: np.full(n, min(index, n - 1))


def _evens_first(n: int) -> Indices:
    return np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)])


def _reversed(n: int) -> Indices:
    return np.arange(n)[::-1]


NUMBERS = ("first", "second", "third", "fourth")

RULES: dict[str, tuple[str, Callable[[int], Indices]]] = {
    "reversed": ("in reverse order", _reversed),
    **{f"rolled-{by:+d}": (f"rolled by {by:+d}", _rolled(by)) for by in (1, -1, 2, -2, 3, -3)},
    "halves-exchanged": ("with the halves exchanged", _halves),
    "rolled-1/2-of-it": ("rolled by half its length, rounded down", _rolled_by_half),
    "neighbours-exchanged": ("with neighbours 0 and 1, 2 and 3, ... exchanged", _pairs),
    "first-two-exchanged": ("with 0 and 1 exchanged", _swapped(0, 1)),
    **{
        f"{NUMBERS[a]}-and-{NUMBERS[b]}-exchanged": (f"with {a} and {b} exchanged", _swapped(a, b))
        for a, b in ((0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
    },
    "last-two-exchanged": ("with the last two exchanged", _swapped(-1, -2)),
    "ends-exchanged": ("with the first and the last exchanged", _swapped(0, -1)),
    "all-first": ("the first one everywhere", lambda n: np.zeros(n, np.int64)),
    "all-last": ("the last one everywhere", lambda n: np.full(n, n - 1)),
    **{f"shifted-{by:+d}": (f"shifted by {by:+d}, 0 at the end", _shifted(by)) for by in (1, -1)},
    **{f"clamped-{by:+d}": (f"shifted by {by:+d}, the end repeated", _clamped(by)) for by in (1, -1, 2, -2)},
    "evens-first": ("evens first, then odds", _evens_first),
    "evens-first-undone": (
        "the first half at even places, the second at odd ones",
        lambda n: np.argsort(_evens_first(n)),
    ),
}
"""Name -> (words, rule): those that need no number."""

SIZES: dict[str, Callable[[Setting], int]] = {
    "head_dim": lambda s: s.config.head_dim,
    "num_heads": lambda s: s.config.num_heads,
    "num_kv_heads": lambda s: s.config.num_kv_heads,
    "heads per kv head": lambda s: s.config.num_heads // s.config.num_kv_heads,
    "value_head_dim": lambda s: s.config.value_head_dim,
    "query length": lambda s: s.sizes.query_len,
    "key length": lambda s: s.sizes.key_len,
    "batch size": lambda s: s.sizes.batch,
    "past length": lambda s: s.sizes.past_len,
}
"""Sizes that blocks and steps of an axis may have; the likeliest first."""

WITHIN = ("reversed", "halves-exchanged", "neighbours-exchanged", "rolled-+1", "rolled--1", "evens-first",
          "evens-first-undone", "all-first", "all-last")  # fmt: skip
"""Rules that may hold within each block, or of the blocks."""


def _always(number: int) -> Callable[[Setting], int]:
    return lambda setting: number


def _sizes_within(n: int, setting: Setting) -> Iterator[tuple[str, Callable[[Setting], int]]]:
    """The sizes and numbers that may be the length of a block of an axis of length n, or a step on it."""
    for number in range(2, min(n, 9)):
        yield str(number), _always(number)
    for name, size in SIZES.items():
        if 1 < size(setting) < n:
            yield name, size


def orders_for(n: int, setting: Setting) -> Iterator[Order]:
    """Every rule that may hold on an axis whose length is n at one setting; the simplest first."""
    for name, (words, plain) in RULES.items():
        yield _plain(name, words, plain)
    for by in range(4, n):
        for signed in (by, -by):
            yield _plain(f"rolled-{signed:+d}", f"rolled by {signed:+d}", _rolled(signed))
    for by in range(2, n):
        for signed in (by, -by):
            yield _plain(f"shifted-{signed:+d}", f"shifted by {signed:+d}, 0 at the end", _shifted(signed))
            yield _plain(f"clamped-{signed:+d}", f"shifted by {signed:+d}, the end repeated", _clamped(signed))
    for index in range(1, n - 1):
        yield _plain(f"all-{index}", f"number {index} everywhere", _everywhere(index))
    for name, size in SIZES.items():
        if 0 < size(setting) < n or size(setting) % n:
            yield from _by_size(name, size)
    for name, size in _sizes_within(n, setting):
        yield from _by_blocks(name, size)


def _plain(slug: str, words: str, rule: Callable[[int], Indices]) -> Order:
    return Order(slug, words, lambda n, setting: rule(n))


def _by_size(name: str, size: Callable[[Setting], int]) -> Iterator[Order]:
    """Rolled and shifted by a size."""
    for sign, direction in ((1, "+"), (-1, "-")):
        yield Order(
            f"rolled-{direction}{name}".replace(" ", "-"),
            f"rolled by {direction}{name}",
            _signed(_rolled, sign, size),
        )
        yield Order(
            f"shifted-{direction}{name}".replace(" ", "-"),
            f"shifted by {direction}{name}, 0 at the end",
            _signed(_shifted, sign, size),
        )


def _signed(rule: Callable[[int], Callable[[int], Indices]], sign: int, size: Callable[[Setting], int]) -> SizedRule:
    return lambda n, setting: rule(sign * size(setting))(n)


def _by_blocks(name: str, size: Callable[[Setting], int]) -> Iterator[Order]:
    """Orders that cut an axis into blocks of a size, or step over it by one."""
    slug = name.replace(" ", "-")

    def order(what: str, words: str, rule: Callable[[Indices, int], Indices]) -> Order:
        return Order(f"{what}-{slug}", words.format(name), lambda n, setting: rule(np.arange(n), max(1, size(setting))))

    yield order("interleaved", "read as ({0}, rest) and transposed", lambda i, m: _transposed(len(i), m))
    yield order("interleaved-back", "read as (rest, {0}) and transposed", lambda i, m: _transposed(len(i), -m))
    yield order("tiled", "tiled: index i reads i modulo {0}", lambda i, m: i % m)
    yield order("tiled-groups", "as if repeated and tiled were exchanged, of {0}", _tiled)
    yield order("repeated", "repeated: index i reads i // {0}", lambda i, m: i // m)
    yield order("first-of-block", "the first of each block of {0} in its place", lambda i, m: i - i % m)
    yield order("last-of-block", "the last of each block of {0} in its place", _last_of_block)
    yield order("until", "{0} and later read the one before them", lambda i, m: np.minimum(i, m - 1))
    for inner in WITHIN:
        words, rule = RULES[inner]
        yield order(f"within-blocks-{inner}", f"within each block of {{0}} {words}", _within(rule))
        yield order(f"blocks-{inner}", f"blocks of {{0}} {words}", _of_blocks(rule))


def _transposed(n: int, m: int) -> Indices:
    if n % abs(m):
        raise DoesNotApply(f"{abs(m)} does not divide {n}")
    shape = (m, n // m) if m > 0 else (n // -m, -m)
    return np.arange(n).reshape(shape).T.ravel()


def _tiled(indices: Indices, m: int) -> Indices:
    """Places of a repeated axis (0, 0, 1, 1) that hold what a tiled one (0, 1, 0, 1) would; m are repeated."""
    n = len(indices)
    if n % m:
        raise DoesNotApply(f"{m} does not divide {n}")
    return (indices % m) * (n // m)


def _last_of_block(indices: Indices, m: int) -> Indices:
    return np.minimum(indices - indices % m + m - 1, len(indices) - 1)


def _within(rule: Callable[[int], Indices]) -> Callable[[Indices, int], Indices]:
    def apply(indices: Indices, m: int) -> Indices:
        n = len(indices)
        return np.concatenate([start + rule(min(m, n - start)) for start in range(0, n, m)])

    return apply


def _of_blocks(rule: Callable[[int], Indices]) -> Callable[[Indices, int], Indices]:
    def apply(indices: Indices, m: int) -> Indices:
        if len(indices) % m:
            raise DoesNotApply(f"{m} does not divide {len(indices)}")
        return indices.reshape(-1, m)[rule(len(indices) // m)].ravel()

    return apply


@lru_cache(maxsize=512)
def table_of(n: int, setting: Setting) -> tuple[tuple[Order, ...], Indices]:
    """The orders for one length and setting that differ, and their indices: (orders, n)."""
    found: dict[bytes, tuple[Order, Indices]] = {}
    alike: list[tuple[Order, Indices]] = []
    for order in orders_for(n, setting):
        try:
            indices = np.asarray(order.rule(n, setting), np.int64)
        except DoesNotApply:
            continue
        if len(indices) == n and 0 <= indices.max(initial=-1) < n and (indices != np.arange(n)).any():
            alike.append((order, indices))
            found.setdefault(order.slug.encode(), alike[-1])
    orders = tuple(order for order, _ in found.values())
    return orders, np.array([indices for _, indices in found.values()], np.int64).reshape(len(orders), n)
