"""Forms: softmaxes without a number: other axes, other maxima, other functions of the score, other sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from conformance.measure.grammar.functions import FUNCTIONS
from conformance.measure.grammar.roundings import FORMATS, to_format
from conformance.measure.softmax.scored import Array, Form, Make, Scored
from mha_core.reference import forward

# Other axes, and other numbers than the maximum -------------------------------------------------------------

_NAMES = {0: "items", 1: "heads", 2: "queries", 3: "keys"}


def _over(axes: tuple[int, ...], maximum: str) -> Make:
    def make(s: Scored) -> Array:
        if maximum == "their own":
            highest = s.open.max(axis=axes, keepdims=True, initial=-np.inf)
            exponentials = np.exp(s.open - np.where(np.isneginf(highest), 0.0, highest))
        else:
            exponentials = s.stable if maximum == "the row's" else s.raw
        return exponentials / exponentials.sum(axis=axes, keepdims=True)

    return make


AXES = tuple(
    Form(
        f"over-{'-and-'.join(_NAMES[axis] for axis in axes)}{name}",
        f"The softmax runs over the {' and '.join(_NAMES[axis] for axis in axes)}{words}.",
        _over(axes, maximum),
    )
    for axes in (*((1,), (2,), (0,), (2, 3), (1, 3), (0, 3), (1, 2), (0, 1), (0, 2), (1, 2, 3), (0, 2, 3), (0, 1, 3)),)
    for maximum, name, words in (
        ("their own", "", ""),
        ("the row's", "-less-maximum-of-row", ", less the maximum of each row of keys"),
        ("none", "-less-nothing", ", and no maximum is subtracted"),
    )
)
"""The sum of the exponentials runs over other axes."""


def _less(shift: Make) -> Make:
    return lambda s: s.normalised(np.exp(s.open - shift(s)))


SHIFTS = tuple(
    Form(f"less-{name}", f"{words} is subtracted before the exponential, not the maximum of the row.", _less(shift))
    for name, words, shift in (
        ("nothing", "Nothing", lambda s: np.zeros_like(s.highest)),
        ("maximum-of-all", "The maximum of the whole tensor", lambda s: s.open.max()),
        ("maximum-of-heads", "The maximum over the heads too", lambda s: s.highest.max(axis=1, keepdims=True)),
        ("maximum-of-queries", "The maximum over the queries too", lambda s: s.highest.max(axis=2, keepdims=True)),
        ("maximum-of-a-head", "The maximum of each head", lambda s: s.highest.max(axis=(0, 2), keepdims=True)),
        ("maximum-of-an-item", "The maximum of each item", lambda s: s.highest.max(axis=(1, 2), keepdims=True)),
        ("maximum-or-0", "The maximum, or 0 if that is larger,", lambda s: np.maximum(s.highest, 0.0)),
        ("largest-magnitude", "The largest magnitude", lambda s: np.abs(s.scores).max(axis=-1, keepdims=True)),
        ("minimum", "The minimum", lambda s: s.scores.min(axis=-1, keepdims=True)),
        ("mean", "The mean", lambda s: np.where(s.allowed, s.scores, 0.0).sum(axis=-1, keepdims=True) / s.count),
        ("first", "The first key's score", lambda s: s.scores[..., :1]),
        ("last", "The last key's score", lambda s: s.scores[..., -1:]),
        ("maximum-of-column", "The maximum over the queries", lambda s: s.open.max(axis=2, keepdims=True)),
        ("maximum-of-first-row", "The maximum of the first query", lambda s: s.highest[:, :, :1]),
    )
)
"""Other numbers than the maximum subtracted: they show only where exp overflows, or loses everything."""

# Functions of the score ---------------------------------------------------------------------------------------


def _each(name: str, words: str, function: Callable[[Array], Array]) -> tuple[Form, ...]:
    def of(s: Scored) -> Array:
        return np.where(s.allowed, function(s.scores), 0.0)

    def over(size: Callable[[Array], Array]) -> Make:
        return lambda s: of(s) / size(of(s))

    said = f"scores {words}"
    return (
        Form(f"{name}-alone", f"Weights are {said}, not divided by their sum.", of),
        Form(f"{name}-normalised", f"Weights are {said}, over the sum of the row.", lambda s: s.normalised(of(s))),
        Form(
            f"{name}-normalised-or-0",
            f"Weights are {said}, over the sum of the row, and 0 where that is 0.",
            lambda s: s.normalised_or_0(of(s)),
        ),
        Form(
            f"{name}-over-magnitudes",
            f"Weights are {said}, over the sum of their magnitudes.",
            over(lambda x: np.abs(x).sum(axis=-1, keepdims=True)),
        ),
        Form(
            f"{name}-over-norm",
            f"Weights are {said}, over the root of the sum of their squares.",
            over(lambda x: np.sqrt((x**2).sum(axis=-1, keepdims=True))),
        ),
        Form(f"softmax-of-{name}", f"The softmax is of {said}.", lambda s: s.softmax(of(s))),
    )


_OF_SCORES: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "score": ("as they are", lambda x: x),
    **{name: row for name, row in FUNCTIONS.items() if name not in ("floor", "ceil", "truncated", "rounded", "sign")},
    "relu-squared": ("with negative numbers replaced by 0, squared", lambda x: np.maximum(x, 0.0) ** 2),
    "tanh-plus-1": ("through tanh, plus 1", lambda x: np.tanh(x) + 1.0),
    "arctan-plus": ("through arctan, plus pi / 2", lambda x: np.arctan(x) + np.pi / 2.0),
    "exp-plus-1": ("through exp(x) + 1", lambda x: np.exp(x) + 1.0),
    "softsign-plus-1": ("through 1 + x / (1 + |x|)", lambda x: 1.0 + x / (1.0 + np.abs(x))),
    "abs-plus-score": ("through x + sqrt(1 + x^2)", lambda x: x + np.sqrt(1.0 + x * x)),
}


# Other forms ----------------------------------------------------------------------------------------------------


def _largest_alone(s: Scored) -> Array:
    """NaN counts as the largest, as in every framework's argmax."""
    return np.where(np.arange(s.open.shape[-1]) == s.open.argmax(axis=-1)[..., None], 1.0, 0.0)


def _sparse(s: Scored, power: int) -> Array:
    """Sparsemax (power 1) or entmax with alpha 1.5 (power 2): max(x - tau, 0)^power with tau for a sum of 1."""
    x = (s.open - s.highest) / power
    low, high = np.full_like(s.highest, -1.0), np.zeros_like(s.highest)
    for _ in range(60):
        middle = (low + high) / 2.0
        above = (np.maximum(x - middle, 0.0) ** power).sum(axis=-1, keepdims=True) >= 1.0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return s.normalised(np.maximum(x - low, 0.0) ** power)


def _taylor(order: int, *, stable: bool) -> Make:
    def make(s: Scored) -> Array:
        x = s.scores - s.highest if stable else s.scores
        term, total = np.ones_like(x), np.ones_like(x)
        for n in range(1, order + 1):
            term = term * x / n
            total = total + term
        return s.normalised(total)

    return make


def _limit(n: int, *, stable: bool) -> Make:
    return lambda s: s.normalised(np.maximum(1.0 + (s.scores - (s.highest if stable else 0.0)) / n, 0.0) ** n)


def _part_of_sum(part: Callable[[int, int], Array], *, guarded: bool = False) -> Make:
    """The exponentials over the sum of those that `part(Lq, Lk)` gives a factor; `guarded`: over 1 where that is 0."""

    def make(s: Scored) -> Array:
        total = (s.stable * part(*s.stable.shape[-2:])).sum(axis=-1, keepdims=True)
        return s.stable / (np.where(total == 0.0, 1.0, total) if guarded else total)

    return make


def _in_blocks(width: int) -> Make:
    def make(s: Scored) -> Array:
        blocks = [slice(start, start + width) for start in range(0, s.scores.shape[-1], width)]
        return np.concatenate([forward.softmax(s.scores[..., one], s.allowed[..., one]) for one in blocks], axis=-1)

    return make


def _over_sums(axis: int, taken: Callable[..., Any]) -> Make:
    return lambda s: s.stable / taken(s.stable.sum(axis=-1, keepdims=True), axis=axis, keepdims=True)


def _rounded_forms(dtype: str) -> tuple[Form, ...]:
    change = to_format(dtype)

    def r(s: Scored, x: Array) -> Array:
        return change.apply(x, (), s.setting)

    def in_all(s: Scored) -> Array:
        exponentials = r(s, np.exp(r(s, r(s, s.scores) - r(s, s.highest))))
        return r(s, exponentials / r(s, exponentials.sum(axis=-1, keepdims=True)))

    makes: dict[str, tuple[str, Make]] = {
        "exponentials": ("Exponentials", lambda s: r(s, s.stable) / s.stable_sum),
        "terms": ("Exponentials, also those of the sum,", lambda s: s.normalised(r(s, s.stable))),
        "sums": ("The sums of exponentials", lambda s: s.stable / r(s, s.stable_sum)),
        "differences": ("Scores less their maximum", lambda s: s.normalised(np.exp(r(s, s.scores - s.highest)))),
        "scores-and-weights": ("Scores and weights", lambda s: r(s, s.softmax(r(s, s.scores)))),
        "all": ("Scores, exponentials, sums and weights", in_all),
    }
    return tuple(
        Form(f"{name}-in-{dtype}", f"{words} are rounded to {dtype}.", make) for name, (words, make) in makes.items()
    )


OTHERS = (
    *(form for name, (words, function) in _OF_SCORES.items() for form in _each(name, words, function)),
    Form("stable-alone", "exp(score - maximum) is not divided by its sum.", lambda s: s.stable),
    Form(
        "stable-over-norm",
        "The exponentials are divided by the root of the sum of their squares.",
        lambda s: s.stable / np.sqrt((s.stable**2).sum(axis=-1, keepdims=True)),
    ),
    Form(
        "over-sum-of-squares",
        "The exponentials are divided by the sum of their squares.",
        lambda s: s.raw / (s.raw**2).sum(axis=-1, keepdims=True),
    ),
    Form("uniform", "Every allowed key has the same weight.", lambda s: s.allowed / s.count),
    Form("hardmax", "The key with the largest score has all the weight.", _largest_alone),
    Form("sparsemax", "A sparsemax stands where the softmax belongs.", partial(_sparse, power=1)),
    Form("entmax-1.5", "An entmax with alpha 1.5 stands where the softmax belongs.", partial(_sparse, power=2)),
    Form("twice", "The softmax is applied twice.", lambda s: s.softmax(s.weights)),
    Form("log", "Weights are the logarithm of the softmax.", lambda s: np.log(np.where(s.allowed, s.weights, 1.0))),
    Form("log-normalised", "Weights are log softmax over its sum.", lambda s: s.normalised(np.log(s.weights))),
    Form("one-less", "Weights are 1 - softmax.", lambda s: 1.0 - s.weights),
    Form("one-less-normalised", "Weights are 1 - softmax over its sum.", lambda s: s.normalised(1.0 - s.weights)),
    Form(
        "linear-from-maximum",
        "Weights are 1 / (1 + maximum - score), normalised.",
        lambda s: s.normalised(1.0 / (1.0 + s.highest - s.scores)),
    ),
    Form(
        "over-running-sum",
        "Each exponential is divided by the sum up to its own key.",
        lambda s: s.stable / np.cumsum(s.stable, axis=-1),
    ),
    Form(
        "over-maximum-of-weights",
        "Weights are divided by the row's largest once more.",
        lambda s: s.weights / s.weights.max(axis=-1, keepdims=True),
    ),
    *(
        Form(
            f"sum-without-{name}{'-or-1' if guarded else ''}",
            f"The sum that is divided by lacks {words}{', and is 1 where it is 0' if guarded else ''}.",
            _part_of_sum(part, guarded=guarded),
        )
        for guarded in (False, True)
        for name, words, part in (
            ("first", "the first key", lambda q, k: np.arange(k) > 0),
            ("last", "the last key", lambda q, k: np.arange(k) < k - 1),
            ("own", "key i for query i", lambda q, k: 1.0 - np.eye(q, k)),
            ("odd", "the keys at odd places", lambda q, k: np.arange(k) % 2 == 0),
            ("later", "keys after the query's own place", lambda q, k: np.tri(q, k)),
        )
    ),
    *(
        Form(f"blocks-of-{n}", f"The softmax runs over each {n} keys by themselves.", _in_blocks(n))
        for n in (2, 3, 4, 8)
    ),
    *(
        Form(
            f"over-{slug}-sum-of-{name}",
            f"Exponentials less the maximum are divided by the {slug} of the sums over the {name}.",
            _over_sums(axis, taken),
        )
        for axis, name in ((1, "heads"), (2, "queries"), (0, "items"))
        for slug, taken in (("mean", np.mean), ("largest", np.max), ("smallest", np.min))
    ),
    *(
        Form(
            f"taylor-{order}{'-stable' if stable else ''}",
            f"exp is replaced by its Taylor polynomial of order {order}.",
            _taylor(order, stable=stable),
        )
        for order in range(1, 6)
        for stable in (False, True)
    ),
    *(
        Form(
            f"limit-{n}{'-stable' if stable else ''}",
            f"exp(x) is replaced by (1 + x / {n})^{n}, or 0.",
            _limit(n, stable=stable),
        )
        for n in (2, 3, 4, 8, 16, 64, 256, 1024)
        for stable in (False, True)
    ),
    *(form for dtype in FORMATS for form in _rounded_forms(dtype)),
)
"""Forms without a number; each also times a number."""
