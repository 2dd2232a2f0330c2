"""Masks by position taken wrongly: the diagonal of causal, and the sides of a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.masks.places import ahead, position
from conformance.experiments.masks.sources import FIXES, on_source
from conformance.experiments.measured import around, with_mask
from conformance.zoo.bug import Bug
from mha_core.reference.state import State, Step

MOST = 4
"""Most places by which a limit is taken to be off; larger ones are read off (see readings.masks)."""

Sides = tuple[int | None, int | None]


# Causal -------------------------------------------------------------------------------------------


def diagonal(n: int, words: str = "") -> Bug:
    """Causal lets in keys up to n places after the query."""
    seen = f"query i sees key i {'+' if n > 0 else '-'} {abs(n)} and those before it"
    return on_source(
        "causal",
        f"diagonal{n:+d}",
        _by_distance(lambda d: d <= n),
        f"is off by {n:+d}: {words or seen}",
    )


def _by_distance(rule: Callable[[NDArray], NDArray]) -> Callable[[State, NDArray], NDArray]:
    """Key j by `rule(how far it stands ahead of the query's position)`."""
    return lambda state, array: np.broadcast_to(rule(ahead(state)), array.shape)


@cache
def causal_bugs() -> tuple[Bug, ...]:
    """Every way of taking causal wrongly."""
    return tuple(_causal())


def _causal() -> Iterator[Bug]:
    for n in range(1, MOST + 1):
        yield diagonal(-n)
        yield diagonal(n)
    for slug, words, rule in (
        ("future", "lets in the query's place and what follows", lambda d: d >= 0),
        ("strict-future", "lets in what follows alone", lambda d: d > 0),
        ("diagonal-only", "lets in the query's own place alone", lambda d: d == 0),
        ("but-diagonal", "keeps out the query's own place alone", lambda d: d != 0),
        ("two", "lets in the query's place and the one before it alone", lambda d: (d <= 0) & (d >= -1)),
        ("every-second", "lets in every second key alone", lambda d: (d <= 0) & (d % 2 == 0)),
        ("every-third", "lets in every third key alone", lambda d: (d <= 0) & (d % 3 == 0)),
        ("second-future", "lets in every second key of those after the query", lambda d: (d <= 0) | (d % 2 == 0)),
    ):
        yield on_source("causal", slug, _by_distance(rule), words)
    for n in range(1, MOST):
        yield on_source(
            "causal",
            f"prefix-{n}",
            _either(_first_keys(n)),
            f"lets in key 0..{n - 1} always",
        )
    for slug, words, by in _shifts():
        yield on_source("causal", slug, _moved(by), words)
    for size in (2, 3, 4, 8):

        def whole(state: State, array: NDArray, size: int = size) -> NDArray:
            j = np.arange(state.sizes.key_len)
            return np.broadcast_to(j // size <= position(state) // size, array.shape)

        def before(state: State, array: NDArray, size: int = size) -> NDArray:
            j = np.arange(state.sizes.key_len)
            own = (j // size == position(state) // size) & (j <= position(state))
            return np.broadcast_to(own, array.shape)

        yield on_source("causal", f"blocks-{size}", whole, f"lets in the whole block of {size} keys of the query")
        yield on_source("causal", f"in-blocks-{size}", before, f"lets in only keys of the query's block of {size}")


def _first_keys(n: int) -> Callable[[State], NDArray]:
    return lambda state: np.arange(state.sizes.key_len) < n


def _each(n: int) -> Callable[[State], NDArray]:
    return lambda state: ahead(state) % n == 0


def _either(where: Callable[[State], NDArray]) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: array | where(state)


def _shifts() -> Iterator[tuple[str, str, Callable[[State], int]]]:
    """Where the diagonal ends: (slug, words, how far it is moved)."""
    yield "bottom-right", "ends at the last query and the last key", lambda s: s.sizes.key_len - s.sizes.query_len
    yield (
        "bottom-right-plus-1",
        "ends at the last query, one after the last key",
        lambda s: s.sizes.key_len - s.sizes.query_len + 1,
    )
    yield (
        "bottom-right-less-1",
        "ends at the last query and the last key but one",
        lambda s: s.sizes.key_len - s.sizes.query_len - 1,
    )
    yield (
        "bottom-right-longer",
        "ends at the last query and the last key, where keys are more than queries",
        lambda s: max(s.sizes.key_len - s.sizes.query_len, 0),
    )
    yield (
        "centred",
        "has its diagonal from the middle of the keys that are too many",
        lambda s: (s.sizes.key_len - s.sizes.query_len) // 2,
    )
    yield "top-left-reversed", "begins Lk - Lq too early", lambda s: s.sizes.query_len - s.sizes.key_len
    yield "query-len", "lets in Lq more keys", lambda s: s.sizes.query_len
    yield "past-len", "lets in as many more keys as there are past ones", lambda s: s.sizes.past_len
    yield "without-past", "counts queries from the first of the new keys", lambda s: -s.sizes.past_len


def _moved(by: Callable[[State], int]) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: np.broadcast_to(ahead(state) <= by(state), array.shape)


# The window ---------------------------------------------------------------------------------------


def window_bug(slug: str, words: str, rule: Callable[[State, int | None, int | None], Sides]) -> Bug:
    """A bug by which window=(left, right) is taken to be `rule(state, left, right)`."""

    def changed(state: State, beneath: Step) -> NDArray:
        window = state.inputs.mask.window
        result: NDArray = beneath(state if window is None else with_mask(state, window=rule(state, *window)))
        return result

    return around("allowed", f"window-{slug}", changed, f"window=(left, right) is taken as {words}.", FIXES["window"])


def sides(left: int, right: int) -> Bug:
    """The sides of a window are off by these numbers."""
    return window_bug(
        f"sides{left:+d}{right:+d}",
        f"({_plus('left', left)}, {_plus('right', right)})",
        lambda s, a, b: (_moved_side(a, left), _moved_side(b, right)),
    )


def _plus(name: str, n: int) -> str:
    return name if not n else f"{name} {'+' if n > 0 else '-'} {abs(n)}"


def _moved_side(side: int | None, by: int) -> int | None:
    return None if side is None else side + by


def _clipped(left: int, right: int) -> Callable[[State, int | None, int | None], Sides]:
    def rule(state: State, a: int | None, b: int | None) -> Sides:
        return (a if a is None else max(a + left, 0)), (b if b is None else max(b + right, 0))

    return rule


def _half(side: int | None) -> int | None:
    return None if side is None else side // 2


def _twice(side: int | None) -> int | None:
    return None if side is None else 2 * side


def _falsy(side: int | None) -> int | None:
    return side or None


@cache
def window_bugs() -> tuple[Bug, ...]:
    """Every way of taking a window wrongly."""
    return tuple(_windows())


def _windows() -> Iterator[Bug]:
    near = sorted(
        ((a, b) for a in range(-3, 4) for b in range(-3, 4) if (a, b) != (0, 0)), key=lambda ab: abs(ab[0]) + abs(ab[1])
    )
    yield from (sides(a, b) for a, b in near)
    for by in (-1, -2, 1, 2):
        for slug, words, rule in (
            (f"left{by:+d}-at-least-0", f"(max({_plus('left', by)}, 0), right)", _clipped(by, 0)),
            (f"right{by:+d}-at-least-0", f"(left, max({_plus('right', by)}, 0))", _clipped(0, by)),
            (f"both{by:+d}-at-least-0", f"its sides {by:+d}, at least 0", _clipped(by, by)),
        ):
            yield window_bug(slug, words, rule)
    for slug, words, rule in (
        ("exchanged", "(right, left)", lambda s, a, b: (b, a)),
        ("left-twice", "(left, left)", lambda s, a, b: (a, a)),
        ("right-twice", "(right, right)", lambda s, a, b: (b, b)),
        ("left-unbounded", "(None, right)", lambda s, a, b: (None, b)),
        ("right-unbounded", "(left, None)", lambda s, a, b: (a, None)),
        ("left-zero", "(0, right)", lambda s, a, b: (0, b)),
        ("right-zero", "(left, 0)", lambda s, a, b: (a, 0)),
        ("none-is-zero", "it is with 0 for None", lambda s, a, b: (a or 0, b or 0)),
        ("zero-is-none", "it is with None for 0", lambda s, a, b: (_falsy(a), _falsy(b))),
        (
            "none-is-other",
            "it is with the other side for None",
            lambda s, a, b: (b if a is None else a, a if b is None else b),
        ),
        ("half", "(left // 2, right // 2)", lambda s, a, b: (_half(a), _half(b))),
        ("half-left", "(left // 2, right)", lambda s, a, b: (_half(a), b)),
        ("half-right", "(left, right // 2)", lambda s, a, b: (a, _half(b))),
        ("twice", "(2 * left, 2 * right)", lambda s, a, b: (_twice(a), _twice(b))),
        ("twice-left", "(2 * left, right)", lambda s, a, b: (_twice(a), b)),
        ("twice-right", "(left, 2 * right)", lambda s, a, b: (a, _twice(b))),
        ("larger", "its larger side on both", lambda s, a, b: _both(max, a, b)),
        ("smaller", "its smaller side on both", lambda s, a, b: _both(min, a, b)),
        ("sum", "(left + right, 0)", lambda s, a, b: (None if a is None or b is None else a + b, 0)),
        ("sum-right", "(0, left + right)", lambda s, a, b: (0, None if a is None or b is None else a + b)),
        ("negative-left", "(-left, right)", lambda s, a, b: (None if a is None else -a, b)),
        ("negative-right", "(left, -right)", lambda s, a, b: (a, None if b is None else -b)),
        (
            "left-of-length",
            "(left + Lk - Lq, right)",
            lambda s, a, b: (_moved_side(a, s.sizes.key_len - s.sizes.query_len), b),
        ),
        (
            "bottom-right",
            "it is, with the last query at the last key",
            lambda s, a, b: (
                _moved_side(a, s.sizes.query_len - s.sizes.key_len),
                _moved_side(b, s.sizes.key_len - s.sizes.query_len),
            ),
        ),
    ):
        yield window_bug(slug, words, rule)

    def chunks(state: State, array: NDArray) -> NDArray:
        left, right = state.inputs.mask.window or (None, None)
        size = (left or 0) + (right or 0) + 1
        return np.broadcast_to(np.arange(state.sizes.key_len) // size == position(state) // size, array.shape)

    def left_chunks(state: State, array: NDArray) -> NDArray:
        left, _ = state.inputs.mask.window or (None, None)
        size = (left or 0) + 1
        return np.broadcast_to(np.arange(state.sizes.key_len) // size == position(state) // size, array.shape)

    def ring(state: State, array: NDArray) -> NDArray:
        left, right = state.inputs.mask.window or (None, None)
        n = max(state.sizes.key_len, 1)
        back, forth = (-ahead(state)) % n, ahead(state) % n
        return (back <= (n if left is None else left)) | (forth <= (n if right is None else right)) & np.ones_like(
            array
        )

    yield on_source("window", "chunks", chunks, "is in fixed chunks of left + right + 1 keys")
    yield on_source("window", "left-chunks", left_chunks, "is in fixed chunks of left + 1 keys")
    yield on_source("window", "ring", ring, "goes round from the last key to the first")
    for n in (1, 2):
        yield on_source(
            "window",
            f"sinks-{n}",
            _either(_first_keys(n)),
            f"lets in key 0..{n - 1} always",
        )
    yield on_source("window", "causal-too", _by(lambda s: ahead(s) <= 0), "keeps out keys after the query")
    for n in (2, 3):
        yield on_source("window", f"every-{n}", _by(_each(n)), f"lets in every {n}. key alone")


def _by(where: Callable[[State], NDArray]) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: array & where(state)


def _both(choose: Callable[[int, int], int], left: int | None, right: int | None) -> Sides:
    if left is None or right is None:
        one = left if right is None else right
        return (None, None) if choose is max else (one, one)
    side = choose(left, right)
    return side, side
