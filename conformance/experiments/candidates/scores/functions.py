"""Functions of queries, keys and scores, weights read otherwise, and what depends on where queries and keys stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.candidates.functions import ACTIVATIONS, FORMATS, NORMS, narrowed
from conformance.experiments.candidates.parameters import WEIGHT_READINGS
from conformance.experiments.candidates.scores.families import Family, fitting, linear, plus
from conformance.experiments.candidates.scores.places import (
    ADDED,
    ADDITIVE,
    HEADS,
    HIDDEN,
    INPUTS,
    INSIDE,
    KEYS,
    PROJECTIONS,
    SCORES,
    SIMILARITY,
    UNSCALED,
    WEIGHTS,
    Place,
)
from conformance.experiments.changes.elements.values import FUNCTIONS
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.state import State

PLACES = (*HEADS, KEYS, *PROJECTIONS, UNSCALED, SIMILARITY, SCORES, *INPUTS, ADDED, HIDDEN, INSIDE)

BESIDE = {SIMILARITY: (UNSCALED, SIMILARITY, SCORES)}
"""Place -> those that differ from it in other layers alone: with a given scale, or with a softcap."""


def _with_those_beside(places: tuple[Place, ...]) -> list[Place]:
    return [one for place in places for one in BESIDE.get(place, (place,))]


Change = Callable[[State, NDArray], NDArray]


def _quiet(function: Callable[[NDArray], NDArray]) -> Change:
    def change(state: State, array: NDArray) -> NDArray:
        with any_numbers:
            return function(array)

    return change


def functions_at(places: tuple[Place, ...]) -> Iterator[Bug]:
    """Activations, normalisations and coarse numbers, at each place; weights read otherwise."""
    for place in _with_those_beside(places):
        if place in WEIGHTS:
            for slug, (words, read) in WEIGHT_READINGS.items():
                yield place.bug(slug, _of_same_shape(read), f"the definition's {words}")
        elif place in PLACES:
            for slug, (words, function) in {**ACTIVATIONS, **NORMS}.items():
                yield place.bug(slug, _quiet(function), f"changed: {words}")
            for slug, (words, function) in FUNCTIONS.items():
                yield place.bug(f"f-{slug}", _quiet(function), f"changed: {words}")
            for bits in (3, 4, 5, 7, 8, 10, 11):
                for how, rounded in (("rounded", np.round), ("truncated", np.trunc)):
                    told = f"{how} to {bits} bits after the leading one"
                    yield place.bug(f"{how}-{bits}-bits", _quiet(_significant(bits, rounded)), told)
            for form in FORMATS:
                yield place.bug(f"in-{form}", _quiet(narrowed(form)), f"rounded to {form}")
            for step in (1.0, 0.5, 0.25, 0.125, 0.1, 1 / 16, 0.05, 1 / 32, 0.02, 0.01, 1 / 64, 1 / 128, 1 / 256, 1e-3):
                grid = lambda x, step=step: step * np.round(x / step)  # noqa: E731
                yield place.bug(f"grid-{step:g}", _quiet(grid), f"rounded to multiples of {step:g}")
        if place in ADDITIVE:
            parts = (family for family in linear(place) if family.slug.startswith("times-") and family.neutral == 1.0)
            yield from (family.bug(lambda state: 0.0, "0") for family in parts)
        if place in SCORED_PLACES:
            for slug, words, function in standardised():
                yield place.bug(slug, _quiet(function), words)
    for place in places:
        if place in (*HEADS, KEYS):
            for slug, (words, rotated) in ROTATIONS.items():
                yield place.bug(slug, rotated, words)


SCORED_PLACES = (SIMILARITY, SCORES)


def standardised() -> Iterator[tuple[str, str, Callable[[NDArray], NDArray]]]:
    """Scores divided by how far they are spread over an axis, less their mean or not."""
    for axis, name in ((-1, "keys"), (-2, "queries"), (1, "heads"), ((-2, -1), "queries and keys")):
        for less, said in ((True, ", less their mean"), (False, "")):
            for eps in (0.0, 1e-3, 1e-5, 1e-6, 1e-8):
                slug = f"standardised-{name.replace(' ', '-')}{'' if less else '-uncentred'}-{eps:g}"
                words = f"divided by their standard deviation over the {name}"
                yield slug, f"{words} plus {eps:g}{said}", _standardised(axis, less, eps, 0.0)
                if eps:
                    told = f"{words}, with {eps:g} added to its square{said}"
                    yield f"{slug}-inside", told, _standardised(axis, less, 0.0, eps)


def _standardised(
    axis: int | tuple[int, int], less: bool, outside: float, inside: float
) -> Callable[[NDArray], NDArray]:
    def function(x: NDArray) -> NDArray:
        if not x.size:
            return x
        mean = x.mean(axis=axis, keepdims=True)
        spread = np.sqrt(((x - mean) ** 2).mean(axis=axis, keepdims=True) + inside) + outside
        found: NDArray = (x - mean if less else x) / spread
        return found

    return function


def on_both() -> Iterator[tuple[Bug, Bug]]:
    """The same function on queries and on keys: rotary positions, normalisations, activations, other orders."""
    of_queries, of_keys = (list(functions_at((place,))) for place in HEADS)
    yield from zip(of_queries, of_keys, strict=True)


def _significant(bits: int, rounded: Callable[[NDArray], NDArray]) -> Callable[[NDArray], NDArray]:
    def function(x: NDArray) -> NDArray:
        mantissa, exponent = np.frexp(x)
        return np.ldexp(rounded(np.ldexp(mantissa, bits + 1)), exponent - bits - 1)

    return function


def _of_same_shape(read: Change) -> Change:
    def change(state: State, weight: NDArray) -> NDArray:
        try:
            found = np.asarray(read(state, weight))
        except ValueError as error:
            raise DoesNotApply(str(error)) from error
        if found.shape != weight.shape:
            raise DoesNotApply(f"{found.shape} is not {weight.shape}")
        return found

    return change


def _rotated(halves: bool) -> Change:
    def change(state: State, array: NDArray) -> NDArray:
        n = array.shape[-1] // 2
        angle = np.arange(array.shape[2])[:, None] * 10000.0 ** (-np.arange(n) / max(n, 1))
        first = array[..., :n] if halves else array[..., 0 : 2 * n : 2]
        second = array[..., n : 2 * n] if halves else array[..., 1 : 2 * n : 2]
        a, b = first * np.cos(angle) - second * np.sin(angle), first * np.sin(angle) + second * np.cos(angle)
        found = array.copy()
        if halves:
            found[..., :n], found[..., n : 2 * n] = a, b
        else:
            found[..., 0 : 2 * n : 2], found[..., 1 : 2 * n : 2] = a, b
        return found

    return change


ROTATIONS: dict[str, tuple[str, Change]] = {
    "rotary-halves": ("rotated by their positions (rotary, base 10000, halves)", _rotated(True)),
    "rotary-pairs": ("rotated by their positions (rotary, base 10000, neighbouring pairs)", _rotated(False)),
    "cumulated": ("cumulated over the positions", lambda s, x: x.cumsum(axis=2)),
    "means-so-far": (
        "the mean of all up to their position",
        lambda s, x: x.cumsum(axis=2) / (np.arange(x.shape[2]) + 1.0)[:, None],
    ),
    "largest-over-positions": (
        "the largest number of all positions",
        lambda s, x: np.broadcast_to(x.max(axis=2, keepdims=True), x.shape),
    ),
    "less-mean-over-positions": (
        "less their mean over the positions",
        lambda s, x: x - x.mean(axis=2, keepdims=True) if x.size else x,
    ),
}
"""Name -> (words after "Queries are", change of (B, H, L, d)): what depends on the position."""


# With a number --------------------------------------------------------------------------------------


CURVES: tuple[tuple[str, str, Callable[[NDArray, float], NDArray], tuple[float, ...]], ...] = (
    ("clipped", "clipped at +-{}", lambda x, c: np.clip(x, -c, c), (0.5, 1.0, 0.2)),
    ("at-most", "at most {}", lambda x, c: np.minimum(x, c), (0.3, 1.0)),
    ("at-least", "at least {}", lambda x, c: np.maximum(x, c), (-0.3, -1.0)),
    ("capped", "c * tanh(x / c) with c = {}", lambda x, c: c * np.tanh(x / c), (1.0, 3.0, 0.4)),
    ("tanh-of", "tanh({} x)", lambda x, a: np.tanh(a * x), (1.0, 0.3)),
    ("power", "the power {} of their size, with their sign", lambda x, p: np.sign(x) * np.abs(x) ** p, (1.1,)),
    ("leaky", "times {} where negative", lambda x, a: np.where(x > 0.0, x, a * x), (0.5,)),
    ("positive", "times {} where positive", lambda x, a: np.where(x < 0.0, x, a * x), (0.5,)),
    ("plus-square", "plus {} times their square", lambda x, a: x + a * x * x, (0.0,)),
    ("plus-cube", "plus {} times their cube", lambda x, a: x + a * x**3, (0.0,)),
    ("plus-absolute", "plus {} times their size", lambda x, a: x + a * np.abs(x), (0.0,)),
    ("softsign", "x / (1 + {} |x|)", lambda x, a: x / (1.0 + a * np.abs(x)), (0.3,)),
)


def curves(places: tuple[Place, ...]) -> Iterator[Family]:
    """Functions of each number at a place that have a number themselves, and powers of lengths."""
    for place in _with_those_beside(places):
        if place not in (*HEADS, KEYS, UNSCALED, SIMILARITY, SCORES, ADDED, HIDDEN, INSIDE):
            continue
        for name, words, function, starts in CURVES:

            def apply(state: State, array: NDArray, a: float, f=function) -> NDArray:
                with any_numbers:
                    found: NDArray = f(array, a)
                return found

            if place != KEYS:
                yield Family(place, name, apply, words, neutral=None, starts=starts)
        if place in (*HEADS, KEYS):
            yield from turned(place)
        if place in HEADS:
            for name, words, norm in (("length", "length", np.linalg.norm), ("rms", "root mean square", _rms)):

                def divided(state: State, array: NDArray, p: float, norm=norm) -> NDArray:
                    size = norm(array, axis=-1, keepdims=True)
                    found: NDArray = array / np.where(size == 0.0, 1.0, size) ** p
                    return found

                yield Family(
                    place, f"over-{name}", divided, f"divided by the power {{}} of their {words}", starts=(0.3,)
                )


def turned(place: Place) -> Iterator[Family]:
    """Pairs of channels turned by so much a position: the first pair alone, or all, by the same angle."""
    for pairs, said in ((1, "channels 0 and 1"), (0, "every two neighbouring channels")):

        def change(state: State, array: NDArray, angle: float, pairs: int = pairs) -> NDArray:
            n = min(pairs or array.shape[-1], array.shape[-1] // 2)
            by = angle * np.arange(array.shape[2])[:, None]
            first, second = array[..., 0 : 2 * n : 2], array[..., 1 : 2 * n : 2]
            found = array.copy()
            found[..., 0 : 2 * n : 2] = first * np.cos(by) - second * np.sin(by)
            found[..., 1 : 2 * n : 2] = first * np.sin(by) + second * np.cos(by)
            return found

        words = f"with {said} turned by {{}} a position"
        yield Family(place, f"turned-{pairs or 'all'}", change, words, neutral=None, starts=(0.1, 1.0, -0.1, 0.5))


def _rms(array: NDArray, axis: int, keepdims: bool) -> NDArray:
    found: NDArray = np.sqrt((array * array).mean(axis=axis, keepdims=keepdims))
    return found


# Where queries and keys stand -----------------------------------------------------------------------

Pattern = Callable[[NDArray, NDArray, State], NDArray]
"""(positions of queries (Lq, 1), of keys (Lk), State) -> (Lq, Lk) or (H, Lq, Lk)."""


def _slopes(state: State) -> NDArray:
    heads = state.config.num_heads
    found: NDArray = 2.0 ** (-8.0 * (np.arange(heads) + 1.0) / heads)
    return found[:, None, None]


PATTERNS: dict[str, tuple[str, Pattern]] = {
    "distance": ("|i - j|", lambda i, j, s: np.abs(i - j)),
    "key-index": ("the index j of the key", lambda i, j, s: j + 0 * i),
    "product": ("i * j", lambda i, j, s: i * j),
    "diagonal": ("1 where i = j", lambda i, j, s: i == j),
    "before": ("1 where j = i - 1", lambda i, j, s: j == i - 1),
    "after": ("1 where j = i + 1", lambda i, j, s: j == i + 1),
    "future": ("1 where j > i", lambda i, j, s: j > i),
    "past": ("1 where j < i", lambda i, j, s: j < i),
    "square": ("(i - j)^2", lambda i, j, s: (i - j) ** 2),
    "log-distance": ("ln(1 + |i - j|)", lambda i, j, s: np.log1p(np.abs(i - j))),
    "inverse": ("1 / (1 + |i - j|)", lambda i, j, s: 1.0 / (1.0 + np.abs(i - j))),
    "relative": ("j / Lk", lambda i, j, s: j / s.sizes.key_len + 0 * i),
    "alibi": ("ALiBi's slope of the head times |i - j|", lambda i, j, s: _slopes(s) * np.abs(i - j)),
    "alibi-keys": ("ALiBi's slope of the head times j", lambda i, j, s: _slopes(s) * (j + 0 * i)),
    "head-key": ("h * j", lambda i, j, s: np.arange(s.config.num_heads)[:, None, None] * (j + 0 * i)),
    "head-distance": ("h * |i - j|", lambda i, j, s: np.arange(s.config.num_heads)[:, None, None] * np.abs(i - j)),
}


def patterns() -> Iterator[Family]:
    """So much of what depends on the indices i of the query and j of the key; aligned at their first, or last."""
    for name, (words, pattern) in PATTERNS.items():
        for end in (False, True):

            def part(state: State, array: NDArray, pattern: Pattern = pattern, end: bool = end) -> NDArray:
                query_len, key_len = array.shape[-2:]
                i = np.arange(query_len)[:, None] + (key_len - query_len if end else 0)
                return np.asarray(pattern(i, np.arange(key_len), state), np.float64)

            where = " (queries and keys aligned at their ends)" if end else ""
            yield plus(SIMILARITY, f"{name}{'-end' if end else ''}", part, words + where)

            def times(state: State, array: NDArray, a: float, part: Change = part) -> NDArray:
                return array * (1.0 + a * fitting(part(state, array), array))

            yield Family(
                SIMILARITY, f"times-{name}{'-end' if end else ''}", times, f"times 1 + {{}} times {words}{where}"
            )
    for name, words, of_keys in (
        ("key-square", "|k_j|^2", lambda s: (s.heads_of("keys") ** 2).sum(-1)),
        ("key-length", "|k_j|", lambda s: np.linalg.norm(s.heads_of("keys"), axis=-1)),
        ("key-sum", "the sum of k_j's channels", lambda s: s.heads_of("keys").sum(-1)),
    ):
        for place in (UNSCALED, SIMILARITY):
            yield plus(place, name, partial(_for_each_query, of_keys=of_keys), words)


def _for_each_query(state: State, array: NDArray, of_keys: Callable[[State], NDArray]) -> NDArray:
    return of_keys(state)[:, :, None, :]
