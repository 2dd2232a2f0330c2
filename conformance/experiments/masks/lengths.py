"""Lengths taken wrongly: another number of keys for the one that is given, or counted from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.axes import RULES, taken
from conformance.experiments.masks.sources import FIXES, on_source, on_value
from conformance.experiments.measured import with_mask
from conformance.zoo.bug import Bug
from mha_core.reference.state import State

MOST = 4
"""Most keys by which a length is taken to be off; larger ones are read off (see readings.masks)."""

Lengths = Callable[[State, NDArray], NDArray]
"""(state, lengths (B,) or (B, Lq)) -> other lengths of that shape; below 0 and above Lk too."""


@cache
def length_bugs() -> tuple[Bug, ...]:
    """Every way of taking a length wrongly."""
    return tuple(_numbers()) + tuple(_orders()) + tuple(_counted())


def length_bug(slug: str, words: str, rule: Lengths) -> Bug:
    """A bug by which the length is taken to be `rule(state, lengths)`."""

    def change(state: State) -> State:
        return with_mask(state, valid_lens=rule(state, np.asarray(state.inputs.mask.valid_lens)))

    return on_value("valid_lens", slug, change, f"The length is taken as {words}.", FIXES["valid_lens"])


def _plus(n: int) -> Lengths:
    return lambda state, lens: lens + n


def plus(n: int) -> Bug:
    """The length is off by n."""
    return length_bug(f"plus{n:+d}", f"length {'+' if n > 0 else '-'} {abs(n)}", _plus(n))


def _numbers() -> Iterator[Bug]:
    for n in range(1, MOST + 1):
        yield plus(n)
        yield plus(-n)
    yield length_bug("complement", "Lk - length", lambda s, lens: s.sizes.key_len - lens)
    yield length_bug("complement-less-1", "Lk - length - 1", lambda s, lens: s.sizes.key_len - lens - 1)
    yield length_bug("half", "length // 2", lambda s, lens: lens // 2)
    yield length_bug("half-up", "length / 2, rounded up", lambda s, lens: -(-lens // 2))
    yield length_bug("twice", "2 * length", lambda s, lens: 2 * lens)
    yield length_bug("twice-less-1", "2 * length - 1", lambda s, lens: 2 * lens - 1)
    yield length_bug("within-queries", "at most Lq", lambda s, lens: np.minimum(lens, s.sizes.query_len))
    yield length_bug("query-len", "Lq, whatever it is", lambda s, lens: np.full_like(lens, s.sizes.query_len))
    yield length_bug("at-least-queries", "at least Lq", lambda s, lens: np.maximum(lens, s.sizes.query_len))
    for n in (1, 2):
        yield length_bug(f"all-but-{n}", f"Lk - {n}, whatever it is", _all_but(n))
        yield length_bug(f"at-most-all-but-{n}", f"at most Lk - {n}", _at_most_all_but(n))
    for n in (1, 2, 3):
        yield length_bug(f"constant-{n}", f"{n}, whatever it is", _of_each(partial(np.full_like, fill_value=n)))
        yield length_bug(f"at-least-{n}", f"at least {n}", _of_each(partial(np.maximum, n)))
        yield length_bug(f"at-most-{n}", f"at most {n}", _of_each(partial(np.minimum, n)))
    for size in (2, 3, 4, 8):
        yield length_bug(f"up-to-{size}s", f"the next multiple of {size}", _multiple(size, up=True))
        yield length_bug(f"down-to-{size}s", f"the multiple of {size} below", _multiple(size, up=False))
    yield length_bug("plus-offset", "length + query_offset", lambda s, lens: lens + _offset(s, lens))
    yield length_bug("plus-past", "length + the number of past keys", lambda s, lens: lens + s.sizes.past_len)
    yield length_bug("less-past", "length - the number of past keys", lambda s, lens: lens - s.sizes.past_len)


def _of_each(rule: Callable[[NDArray], NDArray]) -> Lengths:
    return lambda state, lens: rule(lens)


def _all_but(n: int) -> Lengths:
    return lambda state, lens: np.full_like(lens, state.sizes.key_len - n)


def _at_most_all_but(n: int) -> Lengths:
    return lambda state, lens: np.minimum(lens, state.sizes.key_len - n)


def _multiple(size: int, *, up: bool) -> Lengths:
    return lambda state, lens: (-(-lens // size) if up else lens // size) * size


def _offset(state: State, lens: NDArray) -> NDArray:
    offset = np.asarray(state.inputs.mask.query_offset)
    return offset.reshape(-1, *[1] * (lens.ndim - 1)) if offset.ndim else offset


def _orders() -> Iterator[Bug]:
    """Lengths of another item, or of another query."""
    for axis, name in ((0, "item"), (1, "query")):
        for slug, (words, rule) in RULES.items():

            def reordered(state: State, lens: NDArray, axis: int = axis, rule: Callable = rule) -> NDArray:
                if lens.ndim <= axis or not lens.shape[axis]:
                    return lens
                return taken(lens, rule(lens.shape[axis]), axis).astype(np.int64)

            sentence = f"those of the {name}s {words}"
            yield length_bug(f"{name}-{slug}", sentence, reordered)
        for slug, words, total in (("longest", "longest", np.max), ("shortest", "shortest", np.min)):

            def one(state: State, lens: NDArray, axis: int = axis, total: Callable = total) -> NDArray:
                if lens.ndim <= axis or not lens.shape[axis]:
                    return lens
                return np.broadcast_to(total(lens, axis=axis, keepdims=True), lens.shape)

            yield length_bug(f"{slug}-{name}", f"the {words} of all {'queries' if axis else 'items'}", one)
    yield length_bug(
        "running-longest",
        "the longest up to this query",
        lambda s, lens: np.maximum.accumulate(lens, axis=1) if lens.ndim == 2 else lens,
    )
    yield length_bug(
        "whole-longest", "the longest of the whole call", lambda s, lens: np.full_like(lens, lens.max(initial=0))
    )


def _counted() -> Iterator[Bug]:
    """Keys counted from elsewhere than from key 0."""

    def by(rule: Callable[[NDArray, NDArray, int], NDArray]) -> Callable[[State, NDArray], NDArray]:
        def change(state: State, array: NDArray) -> NDArray:
            lens = np.asarray(state.inputs.mask.valid_lens).reshape(state.sizes.batch, 1, -1, 1)
            return rule(np.arange(state.sizes.key_len), lens, state.sizes.key_len) & np.ones_like(array)

        return change

    for slug, words, rule in (
        ("from-the-right", "is counted from the last key", lambda j, lens, n: j >= n - lens),
        ("from-the-right-plus-1", "is counted from the last key, less 1", lambda j, lens, n: j > n - lens),
        ("from-key-1", "is counted from key 1, and key 0 is out", lambda j, lens, n: (j >= 1) & (j <= lens)),
        ("key-0-out", "leaves key 0 out", lambda j, lens, n: (j >= 1) & (j < lens)),
        ("padding-only", "says where keys begin", lambda j, lens, n: j >= lens),
        ("after", "says after which keys begin", lambda j, lens, n: j > lens),
        ("one-key", "says the one key that is in", lambda j, lens, n: j == lens - 1),
        ("but-one-key", "says the one key that is out", lambda j, lens, n: j != lens),
        ("but-last-key", "says the one key that is out, counted from 1", lambda j, lens, n: j != lens - 1),
    ):
        yield on_source("valid_lens", f"counted-{slug}", by(rule), words)

    def for_queries(state: State, array: NDArray) -> NDArray:
        lens = np.asarray(state.inputs.mask.valid_lens)
        if lens.ndim != 1:
            return array
        real = np.arange(state.sizes.query_len)[:, None] < lens.reshape(-1, 1, 1, 1)
        return np.broadcast_to(real, array.shape)

    def real_only(state: State, array: NDArray) -> NDArray:
        return array & for_queries(state, array)

    def beyond_sees_all(state: State, array: NDArray) -> NDArray:
        lens = np.asarray(state.inputs.mask.valid_lens)
        return array | ~for_queries(state, array) if lens.ndim == 1 else array

    yield on_source("valid_lens", "on-queries-alone", for_queries, "excludes queries and no keys")
    yield on_source("valid_lens", "on-queries-too", real_only, "excludes queries as well as keys")
    yield on_source(
        "valid_lens", "for-real-queries", beyond_sees_all, "is ignored for queries at and beyond the length"
    )
