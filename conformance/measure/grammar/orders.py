"""Orders: which index each place of an axis reads, as a rule for every length; one table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.measure.grammar.numbers import ordinal
from conformance.measure.grammar.sample import Change, Setting
from conformance.zoo.bug import DoesNotApply

Indices = NDArray[np.int64]
"""(n,): the index that each of n places reads; -1 reads a 0."""

SizedRule = Callable[[int, Setting], Indices]


class Order(NamedTuple):
    """One rule for an axis: a name, words to be read after "with its head axis", and (length, setting) -> indices.

    The rule raises DoesNotApply where it has no meaning.
    """

    slug: str
    words: str
    rule: SizedRule


# The table ----------------------------------------------------------------------------------------------


def _even(n: int) -> int:
    if n % 2:
        raise DoesNotApply("an odd length has no halves")
    return n


def _swapped(first: int, second: int, n: int) -> Indices:
    order = np.arange(n)
    if max(first, -first - 1, second, -second - 1) < n:
        order[[first, second]] = order[[second, first]]
    return order


def _shifted(by: int, n: int) -> Indices:
    order = np.arange(n) + by
    return np.where((order < 0) | (order >= n), -1, order)


def _rolled(by: int, n: int) -> Indices:
    return np.roll(np.arange(n), by)


def _clamped(by: int, n: int) -> Indices:
    return np.clip(np.arange(n) + by, 0, n - 1)


def _everywhere(index: int, n: int) -> Indices:
    return np.full(n, min(index, n - 1))


def _evens_first(n: int) -> Indices:
    return np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)])


def _evens_first_undone(n: int) -> Indices:
    return np.argsort(_evens_first(n))


NUMBERS = ("first", "second", "third", "fourth")

RULES: dict[str, tuple[str, Callable[[int], Indices]]] = {
    "reversed": ("in reverse order", lambda n: np.arange(n)[::-1]),
    **{f"rolled-{by:+d}": (f"rolled by {by:+d}", partial(_rolled, by)) for by in (1, -1, 2, -2, 3, -3)},
    "halves-exchanged": ("with the halves exchanged", lambda n: np.roll(np.arange(_even(n)), n // 2)),
    "rolled-1/2-of-it": ("rolled by half its length, rounded down", lambda n: np.roll(np.arange(n), n // 2)),
    "neighbours-exchanged": ("with neighbours 0 and 1, 2 and 3, ... exchanged", lambda n: np.arange(_even(n)) ^ 1),
    "first-two-exchanged": ("with 0 and 1 exchanged", partial(_swapped, 0, 1)),
    **{
        f"{NUMBERS[a]}-and-{NUMBERS[b]}-exchanged": (f"with {a} and {b} exchanged", partial(_swapped, a, b))
        for a, b in ((0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
    },
    "last-two-exchanged": ("with the last two exchanged", partial(_swapped, -1, -2)),
    "ends-exchanged": ("with the first and the last exchanged", partial(_swapped, 0, -1)),
    "all-first": ("the first one everywhere", lambda n: np.zeros(n, np.int64)),
    "all-last": ("the last one everywhere", lambda n: np.full(n, n - 1)),
    **{f"shifted-{by:+d}": (f"shifted by {by:+d}, 0 at the end", partial(_shifted, by)) for by in (1, -1)},
    **{f"clamped-{by:+d}": (f"shifted by {by:+d}, the end repeated", partial(_clamped, by)) for by in (1, -1, 2, -2)},
    "evens-first": ("evens first, then odds", _evens_first),
    "evens-first-undone": ("the first half at even places, the second at odd ones", _evens_first_undone),
}
"""Name -> (words, rule): those that need no number."""

BLOCKS: dict[str, Callable[[Setting], int]] = {
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

WITHIN = (
    *("reversed", "halves-exchanged", "neighbours-exchanged", "rolled-+1", "rolled--1", "evens-first"),
    *("evens-first-undone", "all-first", "all-last"),
)
"""Rules that may hold within each block, or of the blocks."""


def orders_for(n: int, setting: Setting) -> Iterator[Order]:
    """Every rule that may hold on an axis whose length is n at one setting; the simplest first."""
    for name, (words, plain) in RULES.items():
        yield plain_order(name, words, plain)
    for by in (sign * k for k in range(2, n) for sign in (1, -1)):
        if abs(by) > 3:
            yield plain_order(f"rolled-{by:+d}", f"rolled by {by:+d}", partial(_rolled, by))
        yield plain_order(f"shifted-{by:+d}", f"shifted by {by:+d}, 0 at the end", partial(_shifted, by))
        yield plain_order(f"clamped-{by:+d}", f"shifted by {by:+d}, the end repeated", partial(_clamped, by))
    for index in range(1, n - 1):
        yield plain_order(f"all-{index}", f"number {index} everywhere", partial(_everywhere, index))
    for name, size in BLOCKS.items():
        if 0 < size(setting) < n or size(setting) % n:
            yield from _by_size(name, size)
    for number in range(2, min(n, 9)):
        yield from _by_blocks(str(number), partial(_always, number))
    for name, size in BLOCKS.items():
        if 1 < size(setting) < n:
            yield from _by_blocks(name, size)


def plain_order(slug: str, words: str, rule: Callable[[int], Indices]) -> Order:
    return Order(slug, words, lambda n, setting: rule(n))


def _always(number: int, setting: Setting) -> int:
    return number


def _by_size(name: str, size: Callable[[Setting], int]) -> Iterator[Order]:
    """Rolled and shifted by a size."""
    for sign, mark in ((1, "+"), (-1, "-")):
        for slug, words, rule in (("rolled", "", _rolled), ("shifted", ", 0 at the end", _shifted)):
            by = f"{mark}{name}"
            signed = partial(_signed, rule, sign, size)
            yield Order(f"{slug}-{by}".replace(" ", "-"), f"{slug} by {by}{words}", signed)


def _signed(
    rule: Callable[[int, int], Indices], sign: int, size: Callable[[Setting], int], n: int, setting: Setting
) -> Indices:
    return rule(sign * size(setting), n)


def _by_blocks(name: str, size: Callable[[Setting], int]) -> Iterator[Order]:
    """Orders that cut an axis into blocks of a size, or step over it by one."""
    slug = name.replace(" ", "-")

    def order(what: str, words: str, rule: Callable[[Indices, int], Indices]) -> Order:
        return Order(f"{what}-{slug}", words.format(name), lambda n, s: rule(np.arange(n), max(1, size(s))))

    yield order("interleaved", "read as ({0}, rest) and transposed", lambda i, m: _transposed(len(i), m))
    yield order("interleaved-back", "read as (rest, {0}) and transposed", lambda i, m: _transposed(len(i), -m))
    yield order("tiled", "tiled: index i reads i modulo {0}", lambda i, m: i % m)
    yield order("tiled-groups", "as if repeated and tiled were exchanged, of {0}", _tiled)
    yield order("repeated", "repeated: index i reads i // {0}", lambda i, m: i // m)
    yield order("first-of-block", "the first of each block of {0} in its place", lambda i, m: i - i % m)
    yield order(
        "last-of-block",
        "the last of each block of {0} in its place",
        lambda i, m: np.minimum(i - i % m + m - 1, len(i) - 1),
    )
    yield order("until", "{0} and later read the one before them", lambda i, m: np.minimum(i, m - 1))
    yield order("zero-from", "{0} and later replaced by 0", lambda i, m: np.where(i < m, i, -1))
    for what, words, behind in BEHIND:
        yield order(what, words, behind)
    for inner in WITHIN:
        words, rule = RULES[inner]
        yield order(f"within-blocks-{inner}", f"within each block of {{0}} {words}", partial(_within, rule))
        yield order(f"blocks-{inner}", f"blocks of {{0}} {words}", partial(_of_blocks, rule))


BEHIND: tuple[tuple[str, str, Callable[[Indices, int], Indices]], ...] = (
    ("reversed-behind", "in reverse order from {0} on", lambda i, m: np.where(i < m, i, len(i) - 1 - i + m)),
    ("at-reads-before", "with {0} reading the one before it", lambda i, m: np.where(i == m, m - 1, i)),
    (
        "before-reads-at",
        "with the one before {0} reading {0}",
        lambda i, m: np.where((i == m - 1) & (m < len(i)), m, i),
    ),
    (
        "one-early-behind",
        "with those from {0} on one place early, over the one before, and 0 at the end",
        lambda i, m: np.where(i < m - 1, i, np.where(i + 1 < len(i), i + 1, -1)),
    ),
    (
        "one-late-behind",
        "with those from {0} on one place late, and 0 at {0}",
        lambda i, m: np.where(i < m, i, np.where(i == m, -1, i - 1)),
    ),
    ("ends-first", "with those from {0} on first", lambda i, m: (i + m) % len(i)),
    ("all-last-before", "with the last before {0} in all places before it", lambda i, m: np.where(i < m, m - 1, i)),
    ("all-first-from", "with {0} in all places before it", lambda i, m: np.where((i < m) & (m < len(i)), m, i)),
)
"""What may befall the places from a number on: new keys behind a past, of whose length it is."""


def _divided(n: int, m: int) -> None:
    if n % m:
        raise DoesNotApply(f"{m} does not divide {n}")


def _transposed(n: int, m: int) -> Indices:
    _divided(n, abs(m))
    shape = (m, n // m) if m > 0 else (n // -m, -m)
    return np.arange(n).reshape(shape).T.ravel()


def _tiled(indices: Indices, m: int) -> Indices:
    """Places of a repeated axis (0, 0, 1, 1) that hold what a tiled one (0, 1, 0, 1) would; m are repeated."""
    _divided(len(indices), m)
    return (indices % m) * (len(indices) // m)


def _within(rule: Callable[[int], Indices], indices: Indices, m: int) -> Indices:
    n = len(indices)
    return np.concatenate([start + rule(min(m, n - start)) for start in range(0, n, m)])


def _of_blocks(rule: Callable[[int], Indices], indices: Indices, m: int) -> Indices:
    _divided(len(indices), m)
    return indices.reshape(-1, m)[rule(len(indices) // m)].ravel()


@lru_cache(maxsize=512)
def table_of(n: int, setting: Setting) -> tuple[tuple[Order, ...], Indices]:
    """The orders for one length and setting that move something, and their indices: (orders, n)."""
    found: dict[str, tuple[Order, Indices]] = {}
    for order in orders_for(n, setting):
        try:
            indices = np.asarray(order.rule(n, setting), np.int64)
        except DoesNotApply:
            continue
        if len(indices) == n and 0 <= indices.max(initial=-1) < n and (indices != np.arange(n)).any():
            found.setdefault(order.slug, (order, indices))
    orders = tuple(order for order, _ in found.values())
    return orders, np.array([indices for _, indices in found.values()], np.int64).reshape(len(orders), n)


# As changes ---------------------------------------------------------------------------------------------


def taken(array: NDArray, order: Indices, axis: int) -> NDArray:
    """`array` with index order[i] at place i of an axis, and 0 where that is -1."""
    found = np.take(array, np.maximum(order, 0), axis=axis)
    if (order >= 0).all():
        return found
    shape = [1] * array.ndim
    shape[axis] = -1
    return np.where((order < 0).reshape(shape), np.zeros((), found.dtype), found)


def order_change(name: str, axis: int, order: Order) -> Change:
    """An axis read in another order, as a change."""

    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        n = array.shape[axis]
        indices = np.asarray(order.rule(n, setting), np.int64)
        if len(indices) != n or indices.max(initial=0) >= n:
            raise DoesNotApply(f"the order has no meaning for {n}")
        return taken(array, indices, axis)

    return Change(f"{name.replace(' ', '-')}-{order.slug}", f"with its {name} axis {order.words}", apply)


def order_changes(axes: tuple[str, ...]) -> Iterator[Change]:
    """Each rule that needs no number on each axis."""
    for position, axis in enumerate(axes):
        for name, (words, rule) in RULES.items():
            yield order_change(axis, position - len(axes), plain_order(name, words, rule))


def exchange(a: int, b: int, *, both: bool) -> Order:
    """Two indices exchanged, or with `both` False a that reads b; nothing at lengths that lack one."""

    def rule(n: int, setting: Setting) -> Indices:
        order = np.arange(n)
        if -n <= a < n and -n <= b < n:
            order[a] = b % n
            if both:
                order[b] = a % n
        return order

    if both:
        return Order(f"exchanged-{a}-{b}", f"with {said(a)} and {said(b)} exchanged", rule)
    return Order(f"{a}-reads-{b}", f"with {said(b)} at the place of {said(a)}", rule)


def said(index: int) -> str:
    """An index in words: negative ones count from the end."""
    last = {-1: "the last", -2: "the last but one"}
    return last.get(index, str(index) if index >= 0 else f"the {ordinal(-index)} last")
