"""Families of softmaxes: with a number that was chosen, or forgotten: see `softmaxes`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from conformance.measure.softmax.scored import Array, Scored


class Family(NamedTuple):
    """Softmaxes that differ by a number: a sentence with {} for it, (Scored, the number) -> weights, where to look."""

    name: str
    words: str
    make: Callable[[Scored, float], Array]
    starts: tuple[float, ...]


SMALL = (1e-9, 1e-7, 1e-5, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SIGNED = (*SMALL, -0.01, -0.03, -0.1, -0.3)
POWERS = (0.1, 0.25, 0.5, 0.7, 0.9, 1.1, 1.4, 2.0, 3.0, -0.5, -1.0)
BOUNDS = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
SHARES = (0.9, 0.7, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15)
LITTLE = (0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3)


def _q_exponential(s: Scored, q: float) -> Array:
    return s.normalised(np.maximum(1.0 + (1.0 - q) * (s.scores - s.highest), 0.0) ** (1.0 / (1.0 - q)))


def _own(s: Scored) -> Array:
    return np.eye(s.scores.shape[-2], s.scores.shape[-1])


def _mixed_with_mean(s: Scored, share: float, axis: int) -> Array:
    return (1.0 - share) * s.weights + share * s.weights.mean(axis=axis, keepdims=True)


def _relu_over(s: Scored, c: float) -> Array:
    positive = np.maximum(s.scores, 0.0)
    return positive / (positive.sum(axis=-1, keepdims=True) + c)


SUMS: tuple[tuple[str, str, Callable[[Scored, float], Array], tuple[float, ...]], ...] = (
    ("plus-raw", "has {} added", lambda s, c: s.stable_sum + c * s.smallest, SIGNED),
    ("plus-stable", "(less the maximum) has {} added", lambda s, c: s.stable_sum + c, SIGNED),
    ("plus-count", "has {} added for each key", lambda s, c: s.stable_sum + c * s.count, SIGNED),
    (
        "at-least",
        "is at least {}",
        lambda s, c: np.maximum(s.stable_sum, c),
        (1.0001, 1.001, 1.01, 1.05, 1.2, 1.5, 2.0, 3.0, 4.0),
    ),
)
"""Other sums of exponentials less the maximum, in words to be read after what is divided by."""


def _over_sum(total: Callable[[Scored, float], Array]) -> Callable[[Scored, float], Array]:
    return lambda s, c: s.weights * s.stable_sum / total(s, c)


OF_SCORES: tuple[tuple[str, str, Callable[[Scored, float], Array], tuple[float, ...]], ...] = (
    ("temperature", "times {}", lambda s, c: c * s.scores, POWERS),
    ("scores-clipped", "bounded by -{0} and {0}", lambda s, c: np.clip(s.scores, -abs(c), abs(c)), BOUNDS),
    ("scores-at-most", "no larger than {}", lambda s, c: np.minimum(s.scores, c), (*BOUNDS, 0.0, -0.1, -1.0)),
    (
        "scores-at-least",
        "no smaller than {}",
        lambda s, c: np.maximum(s.scores, c),
        (*(-b for b in BOUNDS), 0.0, 0.3),
    ),
    ("below-maximum", "no smaller than the maximum less {}", lambda s, c: np.maximum(s.scores, s.highest - c), BOUNDS),
    ("softly-capped", "replaced by {0} tanh(score / {0})", lambda s, c: c * np.tanh(s.scores / c), BOUNDS[4:]),
    (
        "leaky",
        "times {} where negative",
        lambda s, c: np.where(s.scores < 0.0, c * s.scores, s.scores),
        (0.01, 0.1, 0.2, 0.5, -0.5, 2.0),
    ),
    (
        "signed-power",
        "to the power of {}, with their signs",
        lambda s, c: np.sign(s.scores) * np.abs(s.scores) ** c,
        POWERS[:-2],
    ),
)
"""What the softmax may be of, in words to be read after "scores"."""


def _softmax_of(function: Callable[[Scored, float], Array]) -> Callable[[Scored, float], Array]:
    return lambda s, c: s.softmax(function(s, c))


OF_WEIGHTS: tuple[tuple[str, str, Callable[[Scored, float], Array], tuple[float, ...]], ...] = (
    ("power", "raised to the power {}", lambda s, c: s.weights**c, POWERS),
    ("weights-at-most", "at most {}", lambda s, c: np.minimum(s.weights, c), SHARES),
    ("weights-at-least", "at least {}", lambda s, c: np.maximum(s.weights, c), LITTLE),
    ("less", "less {}, and none is below 0", lambda s, c: np.maximum(s.weights - c, 0.0), (1e-3, 0.01, 0.05, 0.1)),
)
"""Functions of the weights, in words to be read after "weights are"; each also divided by its sum again."""


def _again(function: Callable[[Scored, float], Array]) -> Callable[[Scored, float], Array]:
    return lambda s, c: s.normalised(function(s, c))


FAMILIES: tuple[Family, ...] = (
    *(
        Family(slug, f"Scores are {words} before the softmax.", _softmax_of(of), starts)
        for slug, words, of, starts in OF_SCORES
    ),
    *(
        Family(slug, f"The sum of exponentials that is divided by {words}.", _over_sum(total), starts)
        for slug, words, total, starts in SUMS
    ),
    *(Family(slug, f"Weights are {words}.", of, starts) for slug, words, of, starts in OF_WEIGHTS),
    *(
        Family(f"{slug}-normalised", f"Weights are {words}, and divided by their sum again.", _again(of), starts)
        for slug, words, of, starts in OF_WEIGHTS
        if slug != "power"
    ),
    Family(
        "exponentials-plus",
        "Exponentials (less the maximum) have {} added, and are divided by the sum of that.",
        lambda s, c: s.normalised(s.stable + c),
        SIGNED,
    ),
    Family(
        "raw-exponentials-plus",
        "Exponentials have {} added, and are divided by the sum of that.",
        lambda s, c: s.normalised(s.stable + c * s.smallest),
        SIGNED,
    ),
    Family(
        "numerators-plus",
        "Exponentials (less the maximum) have {} added after they were summed.",
        lambda s, c: s.weights + c / s.stable_sum,
        SIGNED,
    ),
    *(
        Family(
            f"mixed-with-mean-over-{name}",
            f"A share {{}} of each weight is replaced by its mean over the {name}.",
            partial(_mixed_with_mean, axis=axis),
            SIGNED,
        )
        for axis, name in ((1, "heads"), (2, "queries"), (0, "items"))
    ),
    Family(
        "to-the-raw",
        "Exponentials are divided by the power {} of their sum.",
        lambda s, c: s.raw / s.raw_sum**c,
        POWERS,
    ),
    Family(
        "to-the-stable",
        "Exponentials less the maximum are divided by the power {} of their sum.",
        lambda s, c: s.stable / s.stable_sum**c,
        POWERS,
    ),
    Family(
        "norm",
        "Exponentials are divided by their norm of order {}.",
        lambda s, c: s.stable / (s.stable**c).sum(axis=-1, keepdims=True) ** (1.0 / c),
        (0.5, 1.5, 2.0, 3.0, 4.0, 8.0),
    ),
    Family("plus", "Weights have {} added.", lambda s, c: s.weights + c, SIGNED),
    Family(
        "smoothed",
        "A share {} of each weight is spread evenly.",
        lambda s, c: (1.0 - c) * s.weights + c / s.count,
        SIGNED,
    ),
    Family("smoothed-more", "Weights have {} / keys added.", lambda s, c: s.weights + c / s.count, SIGNED),
    Family(
        "mixed-with-own",
        "A share {} of each weight goes to key i.",
        lambda s, c: (1.0 - c) * s.weights + c * _own(s),
        SIGNED,
    ),
    Family("plus-own", "Key i has {} added to its weight.", lambda s, c: s.weights + c * _own(s), SIGNED),
    Family(
        "q-exponential",
        "exp is replaced by the q-exponential with q = {}.",
        _q_exponential,
        (0.2, 0.5, 0.66, 0.8, 1.2, 1.5, 2.5),
    ),
    Family(
        "sigmoid-less",
        "Weights are sigmoid(score - {}).",
        lambda s, c: 1.0 / (1.0 + np.exp(c - s.scores)),
        (*SIGNED, 2.0, -1.0, -3.0),
    ),
    Family("relu-normalised-plus", "Weights are relu(score) over its sum plus {}.", _relu_over, SMALL),
)
