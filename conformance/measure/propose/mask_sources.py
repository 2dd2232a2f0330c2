"""Mask sources: several sources combined otherwise, and what one source alone may be taken for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial, reduce
from itertools import chain, combinations, permutations, product

import numpy as np
from numpy.typing import NDArray

from conformance.measure.faults import bug_of
from conformance.measure.propose.mask_places import (
    OF_ALL,
    SOURCES,
    array_of,
    given,
    positions,
    sentence_of,
    sides_of,
    with_array,
    without,
)
from conformance.zoo.bug import Bug
from mha_core.reference.state import State, Step


@cache
def combined() -> tuple[Bug, ...]:
    """Several sources combined wrongly: dropped beside others, joined by OR or XOR, only one of them counted."""
    return tuple(_combined())


def _some(sources: Iterable[str], least: int = 1) -> Iterator[tuple[str, ...]]:
    """Every set of at least so many of these, the small ones first."""
    given = tuple(sources)
    return chain.from_iterable(combinations(given, size) for size in range(least, len(given) + 1))


def _combined() -> Iterator[Bug]:
    def named(some: Iterable[str], between: str = " and ") -> str:
        return between.join(SOURCES[source][0] for source in some)

    for source in SOURCES:
        others = [other for other in SOURCES if other != source]
        for some in _some(others):
            said = f"{named([source])} is ignored where {named(some, ' or ')} is given too"
            yield _where(f"{source}-dropped-with-{'-'.join(some)}", said, partial(_dropped_with, source, some))
        for other in others:
            said = f"{named([source])} is ignored unless {named([other])} is given too"
            yield _where(f"{source}-only-with-{other}", said, partial(_dropped_without, source, other))
    joins: tuple[tuple[str, np.ufunc], ...] = ("or", np.logical_or), ("xor", np.logical_xor)
    for some, (slug, join) in product(_some(SOURCES, 2), joins):
        said = f"{named(some)} are combined with {slug.upper()}, not AND"
        yield _where(f"{slug}-{'-'.join(some)}", said, partial(_joined, some, join))
    for some in (some for some in _some(SOURCES) if "window" in some):
        said = f"{named(some)} are combined with OR, the window's sides too"
        said += "; a bias without -inf lets in every key" if "bias" in some else ""
        yield _where(f"or-sides-{'-'.join(some)}", said, partial(_joined_apart, some))
    for order in permutations(SOURCES, 2):
        rest = tuple(source for source in SOURCES if source not in order)
        for whole in ((*order, *rest), (*rest, *order), (*order, *rest[::-1])):
            said = f"of several sources only one counts, the first of: {named(whole, ', ')}"
            yield _where(f"first-of-{'-'.join(whole)}", said, partial(_first_of, whole))
    for least in (2, 3, 4):
        said = f"the whole mask is ignored where {least} or more sources are given"
        yield _where(f"none-of-{least}", said, partial(_none_of, least))


def _where(slug: str, said: str, change: Callable[[State, frozenset[str]], State]) -> Bug:
    def changed(state: State, beneath: Step) -> NDArray:
        found: NDArray = beneath(change(state, frozenset(given(state.inputs.mask))))
        return found

    return bug_of(f"sources-{slug}".replace("_", "-"), f"{said[0].upper()}{said[1:]}.", OF_ALL, "allowed", changed)


def _dropped_with(source: str, some: tuple[str, ...], state: State, here: frozenset[str]) -> State:
    return without(state, source) if source in here and here & set(some) else state


def _dropped_without(source: str, other: str, state: State, here: frozenset[str]) -> State:
    return state if other in here else without(state, source)


def _joined(some: tuple[str, ...], join: np.ufunc, state: State, here: frozenset[str]) -> State:
    both = [source for source in some if source in here]
    if len(both) < 2:
        return state
    return with_array(without(state, *both), both[0], reduce(join, [array_of(state, source) for source in both]))


def _joined_apart(some: tuple[str, ...], state: State, here: frozenset[str]) -> State:
    """Joined by OR, with the sides of a window as two sources, and each bias as one."""
    mask = state.inputs.mask
    each = {source for source in some if source in here and source != "window"} | {*sides_of(mask)}
    if mask.bias is not None and "bias" in some:
        each.add("bias")
    if len(each) < 2:
        return state
    joined = np.logical_or.reduce(np.broadcast_arrays(*(array_of(state, source) for source in sorted(each))))
    return with_array(without(state, *(source for source in some if source in here)), "window", joined)


def _first_of(order: tuple[str, ...], state: State, here: frozenset[str]) -> State:
    kept = next((source for source in order if source in here), "")
    return without(state, *(source for source in here if source != kept))


def _none_of(least: int, state: State, here: frozenset[str]) -> State:
    return without(state, *here) if len(here) >= least else state


@cache
def special(source: str) -> tuple[Bug, ...]:
    """What a source alone may be taken for."""

    def on(slug: str, words: str, change: Callable[[State, NDArray], NDArray]) -> Bug:
        def changed(state: State, beneath: Step) -> NDArray:
            found: NDArray = beneath(state)
            if source not in given(state.inputs.mask):
                return found
            found = beneath(with_array(state, source, change(state, array_of(state, source))))
            return found

        said, fix = SOURCES[source]
        return bug_of(f"{source}-{slug}".replace("_", "-"), sentence_of(said, words), fix, "allowed", changed)

    def is_real(state: State) -> NDArray:
        lens = np.asarray(state.inputs.mask.valid_lens)
        real = np.arange(state.sizes.query_len)[:, None] < lens.reshape(len(lens), 1, -1, 1)[:, :, :1]
        return real if lens.ndim == 1 else np.ones_like(real)

    def by_position(state: State) -> NDArray:
        lens = np.asarray(state.inputs.mask.valid_lens)
        return positions(state) < lens.reshape(len(lens), 1, -1, 1)

    def chunks(state: State, own: NDArray, sides: int) -> NDArray:
        window = (state.inputs.mask.window or (None, None))[:sides]
        if None in window:
            return own
        size = sum(side or 0 for side in window) + 1
        return np.ones_like(own) & (np.arange(state.sizes.key_len) // size == positions(state) // size)

    if source == "valid_lens":
        return (
            on("on-queries-too", "excludes queries as well as keys", lambda s, x: x & is_real(s)),
            on("on-queries-alone", "excludes queries and no keys", lambda s, x: np.ones_like(x) & is_real(s)),
            on(
                "on-positions",
                "excludes queries by their positions, and no keys",
                lambda s, x: np.ones_like(x) & by_position(s),
            ),
            on("for-real-queries", "is ignored for queries at and beyond the length", lambda s, x: x | ~is_real(s)),
        )
    if source == "window":
        return (
            on("chunks", "is in fixed chunks of left + right + 1 keys", lambda s, x: chunks(s, x, 2)),
            on("left-chunks", "is in fixed chunks of left + 1 keys", lambda s, x: chunks(s, x, 1)),
        )
    return ()
