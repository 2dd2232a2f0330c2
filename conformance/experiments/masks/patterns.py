"""Patterns: what a bool mask may be turned into, whatever its source: axes in another order, places let in or out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.axes import axis_changes
from conformance.experiments.changes.sample import Change as SampleChange
from conformance.experiments.changes.sample import Setting
from conformance.experiments.masks.places import DIAGONALS, places_on
from conformance.experiments.masks.sources import Change, on_source
from conformance.zoo.bug import Bug
from conformance.zoo.forward.scores import transposed
from mha_core.reference.state import State

FOUR = ("item", "head", "query", "key")

BLOCKS = (2, 3, 4, 8)

Pattern = tuple[str, str, Change]
"""(slug, words to be read after the source's name, the change)."""


def _plain(change: Callable[[NDArray], NDArray]) -> Change:
    return lambda state, array: change(array)


def _along(axis: int, total: np.ufunc, *, back: bool = False) -> Change:
    """Running OR or AND along an axis."""

    def change(state: State, array: NDArray) -> NDArray:
        turned = np.flip(array, axis) if back else array
        found: NDArray = total.accumulate(turned, axis=axis)
        return np.flip(found, axis) if back else found

    return change


def _over(axis: int, total: np.ufunc) -> Change:
    """OR or AND of all indices of an axis, for each of them."""
    return lambda state, array: np.broadcast_to(
        total.reduce(array, axis=axis, keepdims=True, initial=total is np.logical_and), array.shape
    )


def _neighbour(by: int, axis: int, total: np.ufunc, outside: bool) -> Change:
    """Each place together with the one `by` after it."""

    def change(state: State, array: NDArray) -> NDArray:
        n = array.shape[axis]
        order = np.arange(n) + by
        found = np.take(array, np.clip(order, 0, max(n - 1, 0)), axis=axis) if n else array
        form = [1] * 4
        form[axis] = n
        inside = ((order >= 0) & (order < n)).reshape(form)
        return np.asarray(total(array, np.where(inside, found, outside)))

    return change


def _shifted(by: int, axis: int) -> Change:
    """Each index has what the one `by` before it has; those without one are let in."""

    def change(state: State, array: NDArray) -> NDArray:
        n = array.shape[axis]
        form = [1] * 4
        form[axis] = n
        source = np.arange(n) - by
        outside = ((source < 0) | (source >= n)).reshape(form)
        return np.asarray(outside | np.roll(array, by, axis=axis))

    return change


def _repeated(state: State, array: NDArray) -> NDArray:
    """Queries and keys exchanged at any sizes, each index taken modulo the other length."""
    queries, keys = array.shape[-2:]
    if not queries or not keys:
        return array
    return array[:, :, np.arange(keys)[None] % queries, np.arange(queries)[:, None] % keys]


def _in_blocks(size: int, axis: int, total: np.ufunc) -> Change:
    """Blocks of `size` along an axis: each place has what any (or every one) of its block has."""

    def change(state: State, array: NDArray) -> NDArray:
        n = array.shape[axis]
        if not n:
            return array
        starts = np.arange(0, n, size)
        found: NDArray = np.repeat(total.reduceat(array, starts, axis=axis), np.diff([*starts, n]), axis=axis)
        return found

    return change


def _as_count(state: State, array: NDArray) -> NDArray:
    return np.arange(array.shape[-1]) < array.sum(axis=-1, keepdims=True)


def _as_last_count(state: State, array: NDArray) -> NDArray:
    return np.arange(array.shape[-1]) >= array.shape[-1] - array.sum(axis=-1, keepdims=True)


@cache
def patterns() -> tuple[Pattern, ...]:
    """Every pattern, the likeliest first."""
    return tuple(_patterns())


def _patterns() -> Iterator[Pattern]:
    yield "ignored", "is ignored", _plain(np.ones_like)
    yield "inverted", "is read the wrong way round", _plain(np.logical_not)
    yield "transposed", "has queries and keys exchanged", lambda state, array: transposed(array, array)
    yield "transposed-repeated", "has queries and keys exchanged, and repeated from the start", _repeated
    for axis_name, place in (("key", 3), ("query", 2)):
        for by in (1, -1, 2, -2):
            yield (
                f"moved-{axis_name}-{by:+d}-open",
                f"is that of the {axis_name} {abs(by)} {'before' if by > 0 else 'after'}, and open at the end",
                _shifted(by, place),
            )
    for name, (words, where) in _places():
        yield f"lets-in-{name}", f"lets in {words} always", _with(where, np.logical_or)
        yield f"keeps-out-{name}", f"keeps out {words} always", _without(where)
    for axis in ("query", "head", "item"):
        for name, (words, where) in places_on(axis).items():
            yield f"ignored-for-{name}", f"is ignored for {words}", _with(where, np.logical_or)
            yield f"inverted-for-{name}", f"is read the wrong way round for {words}", _with(where, np.logical_xor)
            yield f"nothing-for-{name}", f"keeps every key out for {words}", _without(where)
    for slug, words, apply in order_changes():
        yield slug, f"is used {words}", _of_axis(apply)
    yield "counted", "is read as the number of keys to let in, from the first", _as_count
    yield "counted-from-last", "is read as the number of keys to let in, up to the last", _as_last_count
    lengths = (("key", 3), ("query", 2))
    for axis_name, place in lengths:
        yield (
            f"since-first-{axis_name}",
            f"lets in all after the first {axis_name} let in",
            _along(place, np.logical_or),
        )
        yield (
            f"until-first-out-{axis_name}",
            f"keeps out all after the first {axis_name} kept out",
            _along(place, np.logical_and),
        )
        yield (
            f"until-last-{axis_name}",
            f"lets in all before the last {axis_name} let in",
            _along(place, np.logical_or, back=True),
        )
        yield (
            f"since-last-out-{axis_name}",
            f"keeps out all before the last {axis_name} kept out",
            _along(place, np.logical_and, back=True),
        )
    for axis_name, place in (("head", 1), ("query", 2), ("item", 0), ("key", 3)):
        yield f"any-{axis_name}", f"lets in what it lets in for any {axis_name}", _over(place, np.logical_or)
        yield f"every-{axis_name}", f"lets in what it lets in for every {axis_name}", _over(place, np.logical_and)
    for axis_name, place in lengths:
        for by in (1, -1, 2, -2):
            side = f"{abs(by)} {'after' if by > 0 else 'before'}"
            yield (
                f"wider-{axis_name}-{by:+d}",
                f"lets in what it lets in for the {axis_name} {side} too",
                _neighbour(by, place, np.logical_or, False),
            )
            yield (
                f"narrower-{axis_name}-{by:+d}",
                f"keeps out what it keeps out for the {axis_name} {side}",
                (_neighbour(by, place, np.logical_and, True)),
            )
        for size in BLOCKS:
            yield (
                f"blocks-{size}-{axis_name}-any",
                f"lets in whole blocks of {size} {axis_name}s",
                _in_blocks(size, place, np.logical_or),
            )
            yield (
                f"blocks-{size}-{axis_name}-every",
                f"keeps out whole blocks of {size} {axis_name}s",
                _in_blocks(size, place, np.logical_and),
            )


def _places() -> Iterator[tuple[str, tuple[str, Callable[[State], NDArray]]]]:
    yield from places_on("key").items()
    yield from DIAGONALS.items()


def _with(where: Callable[[State], NDArray], combine: np.ufunc) -> Change:
    return lambda state, array: np.asarray(combine(array, where(state)))


def _without(where: Callable[[State], NDArray]) -> Change:
    return lambda state, array: array & ~where(state)


@cache
def order_changes() -> tuple[tuple[str, str, Callable[[NDArray, Setting], NDArray]], ...]:
    """Another order of one of the four axes: (slug, words, the change of an array of numbers)."""

    def on_four(change: SampleChange) -> Callable[[NDArray, Setting], NDArray]:
        return lambda array, setting: change.apply(array, FOUR, setting)

    return tuple((change.slug, change.words, on_four(change)) for change in axis_changes(FOUR))


def _of_axis(apply: Callable[[NDArray, Setting], NDArray]) -> Change:
    return lambda state, array: apply(array, Setting(state.config, state.sizes)).astype(np.bool_)


@cache
def pattern_bugs(source: str) -> tuple[Bug, ...]:
    """Every pattern on a source (see `sources.SOURCES`), or on the combined mask: "all"."""
    return tuple(on_source(source, slug, change, words) for slug, words, change in patterns())


@cache
def always_bugs() -> tuple[Bug, ...]:
    """What keeps keys out with a mask or without: places, and distances of index."""
    found = [
        on_source("always", f"keeps-out-{name}", _without(where), f"keeps out {words}")
        for name, (words, where) in _places()
    ]
    for n in range(1, 6):
        found.append(on_source("always", f"first-{n}-keys", _near(_key(n)), f"keeps out keys from number {n} on"))
        found.append(on_source("always", f"at-most-{n}-ahead", _near(_ahead(n)), f"keeps out keys more than {n} ahead"))
        found.append(on_source("always", f"within-{n}", _near(_within(n)), f"keeps out keys more than {n} away"))
        found.append(
            on_source("always", f"at-most-{n}-behind", _near(_behind(n)), f"keeps out keys more than {n} behind")
        )
    found.append(on_source("always", "future", _near(_ahead(0)), "keeps out keys after the query's index"))
    found.append(on_source("always", "third-key", _near(lambda i, j: j % 3 < 2), "keeps out key 2, 5, 8, ..."))
    return tuple(found)


Rule = Callable[[NDArray, NDArray], NDArray]
"""(i (Lq, 1), j (Lk,)) -> bool (Lq, Lk)."""


def _near(rule: Rule) -> Change:
    return lambda state, array: array & rule(np.arange(state.sizes.query_len)[:, None], np.arange(state.sizes.key_len))


def _key(n: int) -> Rule:
    return lambda i, j: j + 0 * i < n


def _ahead(n: int) -> Rule:
    return lambda i, j: j - i <= n


def _behind(n: int) -> Rule:
    return lambda i, j: i - j <= n


def _within(n: int) -> Rule:
    return lambda i, j: abs(j - i) <= n
