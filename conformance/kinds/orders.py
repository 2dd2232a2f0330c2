"""Orders: a table of wrong orders of an axis. Each is a rule that gives, for any length, the index each place reads."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.kinds.change import Change, Setting
from conformance.zoo.bug import DoesNotApply

Indices = NDArray[np.int64]
"""(n,): the index that each of n places reads; -1 reads a 0."""


class Order(NamedTuple):
    """A rule that reorders an axis: its kebab-case name, a description, and a function (length, call) -> indices."""

    slug: str
    words: str
    rule: Callable[[int, Setting], Indices]


def _even(n: int) -> int:
    if n % 2:
        raise DoesNotApply("an odd length has no halves")
    return n


def _shifted(n: int, by: int) -> Indices:
    order = np.arange(n) + by
    return np.where((order < 0) | (order >= n), -1, order)


def _evens_first(n: int) -> Indices:
    return np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)])


RULES: dict[str, tuple[str, Callable[[int], Indices]]] = {
    "reversed": ("in reverse order {along}", lambda n: np.arange(n)[::-1]),
    "rolled-1": ("rolled {along}: index i has what belongs at i - 1", lambda n: np.roll(np.arange(n), 1)),
    "rolled-back": ("rolled {along}: index i has what belongs at i + 1", lambda n: np.roll(np.arange(n), -1)),
    "halves-exchanged": ("with their halves exchanged {along}", lambda n: np.roll(np.arange(_even(n)), n // 2)),
    "neighbours-exchanged": ("with 0 and 1, 2 and 3, ... exchanged {along}", lambda n: np.arange(_even(n)) ^ 1),
    "all-first": ("those of index 0 everywhere {along}", lambda n: np.zeros(n, np.int64)),
    "all-last": ("those of the last index everywhere {along}", lambda n: np.full(n, n - 1)),
    "one-late": ("moved one later {along}: zeros are first, the last is lost", lambda n: _shifted(n, -1)),
    "one-early": ("moved one earlier {along}: the first is lost, zeros are last", lambda n: _shifted(n, 1)),
    "clamped-late": (
        "shifted {along}: index i has what belongs at i - 1, or else the first one",
        lambda n: np.maximum(np.arange(n) - 1, 0),
    ),
    "clamped-early": (
        "shifted {along}: index i has what belongs at i + 1, or else the last one",
        lambda n: np.minimum(np.arange(n) + 1, n - 1),
    ),
    "first-alone": ("0 at every index but 0 {along}", lambda n: np.minimum(-np.arange(n), 0).clip(-1)),
    "without-last": ("0 at the last index {along}", lambda n: np.append(np.arange(n - 1), -1)),
    "without-first": ("0 at index 0 {along}", lambda n: np.append(-1, np.arange(1, n))),
    "evens-first": ("in another order {along}: those at even indices first", _evens_first),
}
"""Name -> (words, rule)."""

BLOCKS: dict[str, Callable[[Setting], int]] = {
    "head_dim": lambda s: s.config.head_dim,
    "num_heads": lambda s: s.config.num_heads,
    "num_kv_heads": lambda s: s.config.num_kv_heads,
    "(H / G)": lambda s: s.config.num_heads // s.config.num_kv_heads,
    "value_head_dim": lambda s: s.config.value_head_dim,
    "past length": lambda s: s.sizes.past_len,
    "2": lambda s: 2,
}
"""Sizes that blocks of an axis may have."""


def _transposed(i: Indices, m: int) -> Indices:
    if len(i) % abs(m):
        raise DoesNotApply(f"{m} does not divide {len(i)}")
    return i.reshape((m, -1) if m > 0 else (-1, -m)).T.ravel()


OF_BLOCKS: dict[str, tuple[str, Callable[[Indices, int], Indices]]] = {
    "interleaved": ("in another order {along}: reshaped to ({0}, rest) and transposed", _transposed),
    "interleaved-back": (
        "in another order {along}: reshaped to (rest, {0}) and transposed",
        lambda i, m: _transposed(i, -m),
    ),
    "tiled": ("tiled {along}: index i has what belongs at i % {0}", lambda i, m: i % m),
    "tiled-groups": ("tiled {along}, not repeated, {0} times", lambda i, m: (i % m) * (len(i) // m)),
    "repeated": ("repeated {along}: index i has what belongs at i // {0}", lambda i, m: i // m),
    "first-of-block": ("those of the first index of each block of {0} {along}", lambda i, m: i - i % m),
    "moved-on": (
        "shifted {along}: index i has what belongs at i + {0}, or else the last one",
        lambda i, m: np.minimum(i + m, len(i) - 1),
    ),
    "at-most": ("those of index {0} - 1 from there on {along}", lambda i, m: np.minimum(i, m - 1)),
    "zero-from": ("replaced by 0 from index {0} on {along}", lambda i, m: np.where(i < m, i, -1)),
    "ends-first": ("in another order {along}: those from index {0} on come first", lambda i, m: (i + m) % len(i)),
    "reversed-within": (
        "in reverse order in each block of {0} {along}",
        lambda i, m: np.minimum(i - i % m + m - 1, len(i) - 1) - i % m,
    ),
}


@lru_cache(maxsize=1)
def orders() -> tuple[Order, ...]:
    """Return every rule, the simplest first."""
    plain = [Order(name, words, partial(of_any_length, rule)) for name, (words, rule) in RULES.items()]
    for size, of in BLOCKS.items():
        for name, (words, of_block) in OF_BLOCKS.items():
            plain.append(
                Order(f"{name}-{size}".replace(" ", "-"), words.replace("{0}", size), partial(_of_blocks, of_block, of))
            )
    return tuple(plain)


def of_any_length(rule: Callable[[int], Indices], n: int, setting: Setting) -> Indices:
    """Return rule(n): an adapter for rules that depend on the length n alone, and not on the call (`setting`)."""
    return rule(n)


def _of_blocks(
    rule: Callable[[Indices, int], Indices], size: Callable[[Setting], int], n: int, setting: Setting
) -> Indices:
    return rule(np.arange(n), max(1, size(setting)))


def indices_of(order: Order, n: int, setting: Setting) -> Indices:
    """Return int (n,): each new element's old index, or -1 for a 0. Raise DoesNotApply if `order` can't fit n."""
    indices = np.asarray(order.rule(n, setting), np.int64)
    if len(indices) != n or indices.max(initial=-1) >= n:
        raise DoesNotApply(f"the order has no meaning for {n}")
    return indices


def change_of(name: str, axis: int, order: Order) -> Change:
    """Return the Change that reorders one axis of an array. The axis has this `name`, and the negative index `axis`."""

    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        indices = indices_of(order, array.shape[axis], setting)
        shape = [-1 if place == array.ndim + axis else 1 for place in range(array.ndim)]
        return np.where((indices < 0).reshape(shape), 0.0, np.take(array, np.maximum(indices, 0), axis=axis))

    slug, said = f"{name.replace(' ', '-')}-{order.slug}", f"the {'batch' if name == 'item' else name} axis"
    return Change(slug, order.words.replace("{along}", f"along {said}"), apply, f"Leave {said} as it is.")
