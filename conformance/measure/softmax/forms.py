"""Forms: what may stand where the softmax belongs: forms without a number, and families of them with one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from conformance.measure.grammar.functions import FUNCTIONS
from conformance.measure.grammar.numbers import sigmoid
from conformance.measure.grammar.roundings import FORMATS, to_format
from conformance.measure.softmax.scored import Array, Form, Make, Scored
from mha_core.reference import forward

# Without a number -----------------------------------------------------------------------------------------------

_NAMES = {0: "items", 1: "heads", 2: "queries", 3: "keys"}

_SHIFTS: tuple[tuple[str, str, Make], ...] = (
    ("nothing", "Nothing", lambda s: np.zeros_like(s.highest)),
    ("maximum-of-all", "The maximum of the whole tensor", lambda s: s.open.max()),
    ("maximum-of-heads", "The maximum over the heads too", lambda s: s.highest.max(axis=1, keepdims=True)),
    ("maximum-of-queries", "The maximum over the queries too", lambda s: s.highest.max(axis=2, keepdims=True)),
    ("maximum-of-a-head", "The maximum of each head", lambda s: s.highest.max(axis=(0, 2), keepdims=True)),
    ("maximum-of-an-item", "The maximum of each item", lambda s: s.highest.max(axis=(1, 2), keepdims=True)),
    ("maximum-or-0", "The maximum, or 0 if that is larger,", lambda s: np.maximum(s.highest, 0.0)),
    ("largest-magnitude", "The largest magnitude", lambda s: np.abs(s.scores).max(axis=-1, keepdims=True)),
    ("mean", "The mean", lambda s: np.where(s.allowed, s.scores, 0.0).sum(axis=-1, keepdims=True) / s.count),
    ("first", "The first key's score", lambda s: s.scores[..., :1]),
)
"""What may be subtracted in place of the maximum: it shows only where exp overflows, or loses everything."""


def _over(axes: tuple[int, ...], maximum: str, s: Scored) -> Array:
    highest = s.open.max(axis=axes, keepdims=True, initial=-np.inf) if maximum == "their own" else s.highest
    exponentials = s.raw if maximum == "none" else np.exp(s.open - np.where(np.isneginf(highest), 0.0, highest))
    return exponentials / exponentials.sum(axis=axes, keepdims=True)


def _less(shift: Make, s: Scored) -> Array:
    return s.normalised(np.exp(s.open - shift(s)))


PLAIN = (
    *(
        Form(
            f"over-{'-and-'.join(_NAMES[axis] for axis in axes)}{name}",
            f"The softmax runs over the {' and '.join(_NAMES[axis] for axis in axes)}{words}.",
            partial(_over, axes, maximum),
        )
        for axes in ((1,), (2,), (0,), (2, 3), (1, 3), (0, 3), (1, 2), (0, 1), (0, 2), (1, 2, 3), (0, 2, 3), (0, 1, 3))
        for maximum, name, words in (
            ("their own", "", ""),
            ("the row's", "-less-maximum-of-row", ", less the maximum of each row of keys"),
            ("none", "-less-nothing", ", and no maximum is subtracted"),
        )
    ),
    *(
        Form(f"less-{name}", f"{words} is subtracted before the exponential, not the maximum.", partial(_less, shift))
        for name, words, shift in _SHIFTS
    ),
)
"""The sum of the exponentials runs over other axes; another number than the maximum is subtracted."""

_OF_SCORES: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "score": ("as they are", lambda x: x),
    **{name: row for name, row in FUNCTIONS.items() if name not in ("floor", "ceil", "truncated", "rounded", "sign")},
    "relu-squared": ("with negative numbers replaced by 0, squared", lambda x: np.maximum(x, 0.0) ** 2),
    "softsign-plus-1": ("through 1 + x / (1 + |x|)", lambda x: 1.0 + x / (1.0 + np.abs(x))),
    "abs-plus-score": ("through x + sqrt(1 + x^2)", lambda x: x + np.sqrt(1.0 + x * x)),
}

_WAYS: tuple[tuple[str, str, Callable[[Scored, Array], Array]], ...] = (
    ("{}-alone", "Weights are scores {}, not divided by their sum.", lambda s, x: x),
    ("{}-normalised", "Weights are scores {}, over the sum of the row.", Scored.normalised),
    (
        "{}-normalised-or-0",
        "Weights are scores {}, over the sum of the row, and 0 where that is 0.",
        lambda s, x: np.where((total := x.sum(axis=-1, keepdims=True)) == 0.0, 0.0, x / np.where(total, total, 1.0)),
    ),
    ("softmax-of-{}", "The softmax is of scores {}.", lambda s, x: s.softmax(x)),
)
"""What a function of the scores becomes weights by."""


def _of(function: Callable[[Array], Array], way: Callable[[Scored, Array], Array], s: Scored) -> Array:
    return way(s, np.where(s.allowed, function(s.scores), 0.0))


def _over_norm(s: Scored) -> Array:
    return s.stable / np.sqrt((s.stable**2).sum(axis=-1, keepdims=True))


def _largest_alone(s: Scored) -> Array:
    """NaN counts as the largest, as in every framework's argmax."""
    return np.where(np.arange(s.open.shape[-1]) == s.open.argmax(axis=-1)[..., None], 1.0, 0.0)


def _sparse(power: int, s: Scored) -> Array:
    """Sparsemax (power 1) or entmax with alpha 1.5 (power 2): max(x - tau, 0)^power with tau for a sum of 1."""
    x = (s.open - s.highest) / power
    low, high = np.full_like(s.highest, -1.0), np.zeros_like(s.highest)
    for _ in range(60):
        middle = (low + high) / 2.0
        above = (np.maximum(x - middle, 0.0) ** power).sum(axis=-1, keepdims=True) >= 1.0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return s.normalised(np.maximum(x - low, 0.0) ** power)


def _taylor(order: int, stable: bool, s: Scored) -> Array:
    x = s.scores - s.highest if stable else s.scores
    term, total = np.ones_like(x), np.ones_like(x)
    for n in range(1, order + 1):
        term = term * x / n
        total = total + term
    return s.normalised(total)


def _limit(n: int, stable: bool, s: Scored) -> Array:
    return s.normalised(np.maximum(1.0 + (s.scores - (s.highest if stable else 0.0)) / n, 0.0) ** n)


def _part_of_sum(part: Callable[[int, int], Array], guarded: bool, s: Scored) -> Array:
    """The exponentials over the sum of those that `part(Lq, Lk)` gives a factor; `guarded`: over 1 where that is 0."""
    total = (s.stable * part(*s.stable.shape[-2:])).sum(axis=-1, keepdims=True)
    return s.stable / (np.where(total == 0.0, 1.0, total) if guarded else total)


def _in_blocks(width: int, s: Scored) -> Array:
    blocks = [slice(start, start + width) for start in range(0, s.scores.shape[-1], width)]
    return np.concatenate([forward.softmax(s.scores[..., one], s.allowed[..., one]) for one in blocks], axis=-1)


def _rounded(dtype: str) -> dict[str, tuple[str, Make]]:
    change = to_format(dtype)

    def r(s: Scored, x: Array) -> Array:
        return change.apply(x, (), s.setting)

    def in_all(s: Scored) -> Array:
        exponentials = r(s, np.exp(r(s, r(s, s.scores) - r(s, s.highest))))
        return r(s, exponentials / r(s, exponentials.sum(axis=-1, keepdims=True)))

    return {
        "exponentials": ("Exponentials", lambda s: r(s, s.stable) / s.stable_sum),
        "terms": ("Exponentials, also those of the sum,", lambda s: s.normalised(r(s, s.stable))),
        "sums": ("The sums of exponentials", lambda s: s.stable / r(s, s.stable_sum)),
        "differences": ("Scores less their maximum", lambda s: s.normalised(np.exp(r(s, s.scores - s.highest)))),
        "scores-and-weights": ("Scores and weights", lambda s: r(s, s.softmax(r(s, s.scores)))),
        "all": ("Scores, exponentials, sums and weights", in_all),
    }


_MORE: tuple[tuple[str, str, Make], ...] = (
    ("stable-alone", "exp(score - maximum) is not divided by its sum.", lambda s: s.stable),
    ("stable-over-norm", "The exponentials are divided by the root of the sum of their squares.", _over_norm),
    ("uniform", "Every allowed key has the same weight.", lambda s: s.allowed / s.count),
    ("hardmax", "The key with the largest score has all the weight.", _largest_alone),
    ("sparsemax", "A sparsemax stands where the softmax belongs.", partial(_sparse, 1)),
    ("entmax-1.5", "An entmax with alpha 1.5 stands where the softmax belongs.", partial(_sparse, 2)),
    ("twice", "The softmax is applied twice.", lambda s: s.softmax(s.weights)),
    ("one-less", "Weights are 1 - softmax.", lambda s: 1.0 - s.weights),
)

_LACKING: tuple[tuple[str, str, Callable[[int, int], Array]], ...] = (
    ("first", "the first key", lambda q, k: np.arange(k) > 0),
    ("last", "the last key", lambda q, k: np.arange(k) < k - 1),
    ("own", "key i for query i", lambda q, k: 1.0 - np.eye(q, k)),
    ("later", "keys after the query's own place", lambda q, k: np.tri(q, k)),
)
"""What the sum that is divided by may lack."""

TIMES_A_NUMBER = (
    *(
        Form(slug.format(name), said.format(words), partial(_of, function, way))
        for name, (words, function) in _OF_SCORES.items()
        for slug, said, way in _WAYS
    ),
    *(Form(*row) for row in _MORE),
    *(
        Form(
            f"sum-without-{name}{'-or-1' if guarded else ''}",
            f"The sum that is divided by lacks {words}{', and is 1 where it is 0' if guarded else ''}.",
            partial(_part_of_sum, part, guarded),
        )
        for guarded in (False, True)
        for name, words, part in _LACKING
    ),
    *(
        Form(f"blocks-of-{n}", f"The softmax runs over each {n} keys by themselves.", partial(_in_blocks, n))
        for n in (2, 3, 4, 8)
    ),
    *(
        Form(f"{name}-{n}{'-stable' if stable else ''}", words.format(n), partial(form, n, stable))
        for name, words, form, numbers in (
            ("taylor", "exp is replaced by its Taylor polynomial of order {}.", _taylor, range(1, 6)),
            ("limit", "exp(x) is replaced by (1 + x / {0})^{0}, or 0.", _limit, (2, 3, 4, 8, 16, 64, 256, 1024)),
        )
        for n in numbers
        for stable in (False, True)
    ),
    *(
        Form(f"{name}-in-{dtype}", f"{words} are rounded to {dtype}.", make)
        for dtype in FORMATS
        for name, (words, make) in _rounded(dtype).items()
    ),
)
"""Forms that are also looked for times a number."""

# With a number --------------------------------------------------------------------------------------------------


class Family(NamedTuple):
    """Softmaxes that differ by c, a number or (H, 1, 1): a sentence with {} for c, (Scored, c) -> weights, starts."""

    name: str
    words: str
    make: Callable[[Scored, Any], Array]
    starts: tuple[float, ...]


_SMALL = (1e-9, 1e-7, 1e-5, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_SIGNED = (*_SMALL, -0.01, -0.03, -0.1, -0.3)
_POWERS = (0.1, 0.25, 0.5, 0.7, 0.9, 1.1, 1.4, 2.0, 3.0, -0.5, -1.0)
_BOUNDS = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
_BELOW = tuple(-bound for bound in _BOUNDS)
_SLOPES = (0.01, 0.1, 0.2, 0.5, -0.5, 2.0)
_LEAST = (1.0001, 1.001, 1.01, 1.05, 1.2, 1.5, 2.0, 3.0, 4.0)
_SHARES = (0.9, 0.7, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15)
_LITTLE = (0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3)

Row = tuple[str, str, Callable[[Scored, float], Array], tuple[float, ...]]

_SOFTMAX_OF: tuple[Row, ...] = (
    ("temperature", "times {}", lambda s, c: c * s.scores, _POWERS),
    ("scores-clipped", "bounded by -{0} and {0}", lambda s, c: np.clip(s.scores, -abs(c), abs(c)), _BOUNDS),
    ("scores-at-most", "no larger than {}", lambda s, c: np.minimum(s.scores, c), (*_BOUNDS, 0.0, -0.1, -1.0)),
    ("scores-at-least", "no smaller than {}", lambda s, c: np.maximum(s.scores, c), (*_BELOW, 0.0, 0.3)),
    ("below-maximum", "no smaller than the maximum less {}", lambda s, c: np.maximum(s.scores, s.highest - c), _BOUNDS),
    ("softly-capped", "replaced by {0} tanh(score / {0})", lambda s, c: c * np.tanh(s.scores / c), _BOUNDS[4:]),
    ("leaky", "times {} where negative", lambda s, c: np.where(s.scores < 0.0, c * s.scores, s.scores), _SLOPES),
    (
        "signed-power",
        "to the power of {}, with their signs",
        lambda s, c: np.sign(s.scores) * np.abs(s.scores) ** c,
        _POWERS[:-2],
    ),
)
"""What the softmax may be of, in words to be read after "scores are"."""

_OVER: tuple[Row, ...] = (
    ("plus-raw", "has {} added", lambda s, c: s.stable_sum + c * s.smallest, _SIGNED),
    ("plus-stable", "(less the maximum) has {} added", lambda s, c: s.stable_sum + c, _SIGNED),
    ("plus-count", "has {} added for each key", lambda s, c: s.stable_sum + c * s.count, _SIGNED),
    ("at-least", "is at least {}", lambda s, c: np.maximum(s.stable_sum, c), _LEAST),
)
"""Other sums of exponentials less the maximum, in words to be read after what is divided by."""

_OF_WEIGHTS: tuple[Row, ...] = (
    ("power", "raised to the power {}", lambda s, c: s.weights**c, _POWERS),
    ("weights-at-most", "at most {}", lambda s, c: np.minimum(s.weights, c), _SHARES),
    ("weights-at-least", "at least {}", lambda s, c: np.maximum(s.weights, c), _LITTLE),
    ("less", "less {}, and none is below 0", lambda s, c: np.maximum(s.weights - c, 0.0), (1e-3, 0.01, 0.05, 0.1)),
)
"""Functions of the weights, in words to be read after "weights are"; each also divided by its sum again."""


def _q_exponential(s: Scored, q: float) -> Array:
    return s.normalised(np.maximum(1.0 + (1.0 - q) * (s.scores - s.highest), 0.0) ** (1.0 / (1.0 - q)))


def _mixed(axis: int, s: Scored, share: float) -> Array:
    return (1.0 - share) * s.weights + share * s.weights.mean(axis=axis, keepdims=True)


def _smoothed(s: Scored, share: float) -> Array:
    return (1.0 - share) * s.weights + share / s.count


def _own_mixed(s: Scored, share: float) -> Array:
    return (1.0 - share) * s.weights + share * np.eye(s.scores.shape[-2], s.scores.shape[-1])


def _relu_over(s: Scored, c: float) -> Array:
    positive = np.maximum(s.scores, 0.0)
    return positive / (positive.sum(axis=-1, keepdims=True) + c)


def _softmax_of(of: Callable[[Scored, float], Array], s: Scored, c: float) -> Array:
    return s.softmax(of(s, c))


def _over_sum(of: Callable[[Scored, float], Array], s: Scored, c: float) -> Array:
    return s.weights * s.stable_sum / of(s, c)


def _again(of: Callable[[Scored, float], Array], s: Scored, c: float) -> Array:
    return s.normalised(of(s, c))


_WITH_A_NUMBER: tuple[Row, ...] = (
    (
        "exponentials-plus",
        "Exponentials (less the maximum) have {} added, and are divided by the sum of that.",
        lambda s, c: s.normalised(s.stable + c),
        _SIGNED,
    ),
    *(
        (
            f"mixed-with-mean-over-{_NAMES[axis]}",
            f"A share {{}} of each weight is replaced by its mean over the {_NAMES[axis]}.",
            partial(_mixed, axis),
            _SIGNED,
        )
        for axis in (1, 2, 0)
    ),
    (
        "to-the-stable",
        "Exponentials less the maximum are divided by the power {} of their sum.",
        lambda s, c: s.stable / s.stable_sum**c,
        _POWERS,
    ),
    ("plus", "Weights have {} added.", lambda s, c: s.weights + c, _SIGNED),
    ("smoothed", "A share {} of each weight is spread evenly.", _smoothed, _SIGNED),
    ("mixed-with-own", "A share {} of each weight goes to key i.", _own_mixed, _SIGNED),
    ("q-exponential", "exp is replaced by the q-exponential with q = {}.", _q_exponential, _POWERS[1:]),
    (
        "sigmoid-less",
        "Weights are sigmoid(score - {}).",
        lambda s, c: sigmoid(s.scores - c),
        (*_SIGNED, 2.0, -1.0, -3.0),
    ),
    ("relu-normalised-plus", "Weights are relu(score) over its sum plus {}.", _relu_over, _SMALL),
)

FAMILIES: tuple[Family, ...] = tuple(
    Family(slug.format(name), said.format(words), make if how is None else partial(how, make), starts)
    for slug, said, how, rows in (
        ("{}", "Scores are {} before the softmax.", _softmax_of, _SOFTMAX_OF),
        ("{}", "The sum of exponentials that is divided by {}.", _over_sum, _OVER),
        ("{}", "Weights are {}.", None, _OF_WEIGHTS),
        ("{}-normalised", "Weights are {}, and divided by their sum again.", _again, _OF_WEIGHTS[1:]),
        ("{}", "{}", None, _WITH_A_NUMBER),
    )
    for name, words, make, starts in rows
)
"""Softmaxes with a number that was chosen, or forgotten."""
