"""Families of softmaxes: with a number that was chosen, or forgotten: see `softmaxes`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from conformance.experiments.changes.softmaxes import Array, Family, Form, Scored

SMALL = (1e-9, 1e-7, 1e-5, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SIGNED = (*SMALL, -0.01, -0.03, -0.1, -0.3)
POWERS = (0.1, 0.25, 0.5, 0.7, 0.9, 1.1, 1.4, 2.0, 3.0, -0.5, -1.0)
BOUNDS = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)


def _q_exponential(s: Scored, q: float) -> Array:
    x = s.scores - s.highest
    return s.normalised(np.maximum(1.0 + (1.0 - q) * x, 0.0) ** (1.0 / (1.0 - q)))


def _own(s: Scored) -> Array:
    return np.eye(s.scores.shape[-2], s.scores.shape[-1])


def _less(shift: Callable[[Scored], Array]) -> Callable[[Scored], Array]:
    def make(s: Scored) -> Array:
        return s.normalised(np.exp(s.open - shift(s)))

    return make


def _open_mean(s: Scored) -> Array:
    return np.where(s.allowed, s.scores, 0.0).sum(axis=-1, keepdims=True) / s.count


def _over(axes: tuple[int, ...], maximum: str) -> Callable[[Scored], Array]:
    def make(s: Scored) -> Array:
        if maximum == "their own":
            highest = s.open.max(axis=axes, keepdims=True, initial=-np.inf)
            exponentials = np.exp(s.open - np.where(np.isneginf(highest), 0.0, highest))
        else:
            exponentials = s.stable if maximum == "the row's" else s.raw
        return exponentials / exponentials.sum(axis=axes, keepdims=True)

    return make


_NAMES = {0: "items", 1: "heads", 2: "queries", 3: "keys"}

AXES = tuple(
    Form(
        f"over-{'-and-'.join(_NAMES[axis] for axis in axes)}{name}",
        f"The softmax runs over the {' and '.join(_NAMES[axis] for axis in axes)}{words}.",
        _over(axes, maximum),
    )
    for axes in ((1,), (2,), (0,), (2, 3), (1, 3), (0, 3), (1, 2), (0, 1), (0, 2), (1, 2, 3), (0, 2, 3), (0, 1, 3))
    for maximum, name, words in (
        ("their own", "", ""),
        ("the row's", "-less-maximum-of-row", ", less the maximum of each row of keys"),
        ("none", "-less-nothing", ", and no maximum is subtracted"),
    )
)
"""The sum of the exponentials runs over other axes."""


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
        ("mean", "The mean", _open_mean),
        ("first", "The first key's score", lambda s: s.scores[..., :1]),
        ("last", "The last key's score", lambda s: s.scores[..., -1:]),
        ("maximum-of-column", "The maximum over the queries", lambda s: s.open.max(axis=2, keepdims=True)),
        ("maximum-of-first-row", "The maximum of the first query", lambda s: s.highest[:, :, :1]),
    )
)
"""Other numbers than the maximum subtracted: they show only where exp overflows, or loses everything."""


def _sums(s: Scored) -> Array:
    """(B, H, Lq, 1): the sums of the exponentials less the maximum; 0 in a row without a key."""
    return s.stable.sum(axis=-1, keepdims=True)


def _over_sums(s: Scored, axis: int, taken: Callable[..., Any]) -> Array:
    return s.stable / taken(_sums(s), axis=axis, keepdims=True)


def _mixed_with_mean(s: Scored, share: float, axis: int) -> Array:
    return (1.0 - share) * s.weights + share * s.weights.mean(axis=axis, keepdims=True)


SUMS = tuple(
    Form(
        f"over-{slug}-sum-of-{name}",
        f"Exponentials less the maximum are divided by the {slug} of the sums over the {name}.",
        partial(_over_sums, axis=axis, taken=taken),
    )
    for axis, name in ((1, "heads"), (2, "queries"), (0, "items"))
    for slug, taken in (("mean", np.mean), ("largest", np.max), ("smallest", np.min))
)
"""The exponentials over what is made of the sums of several rows."""

FAMILIES = (
    Family("temperature", "The softmax is of scores times {}.", lambda s, c: s.softmax(c * s.scores), POWERS),
    Family(
        "plus-raw",
        "The sum of exponentials that is divided by has {} added.",
        lambda s, c: s.weights * s.stable_sum / (s.stable_sum + c * s.smallest),
        SIGNED,
    ),
    Family(
        "plus-stable",
        "The sum of exponentials (less the maximum) that is divided by has {} added.",
        lambda s, c: s.weights * s.stable_sum / (s.stable_sum + c),
        SIGNED,
    ),
    Family(
        "plus-count",
        "The sum of exponentials that is divided by has {} added for each key.",
        lambda s, c: s.weights * s.stable_sum / (s.stable_sum + c * s.count),
        SIGNED,
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
        "at-least",
        "The sum of exponentials that is divided by is at least {}.",
        lambda s, c: s.weights * s.stable_sum / np.maximum(s.stable_sum, c),
        (1.0001, 1.001, 1.01, 1.05, 1.2, 1.5, 2.0, 3.0, 4.0),
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
    Family("power", "Weights are raised to the power {}.", lambda s, c: s.weights**c, POWERS),
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
        "scores-clipped",
        "Scores are bounded by -{0} and {0}.",
        lambda s, c: s.softmax(np.clip(s.scores, -abs(c), abs(c))),
        BOUNDS,
    ),
    Family(
        "scores-at-most",
        "Scores are at most {}.",
        lambda s, c: s.softmax(np.minimum(s.scores, c)),
        (*BOUNDS, 0.0, -0.1, -1.0),
    ),
    Family(
        "scores-at-least",
        "Scores are at least {}.",
        lambda s, c: s.softmax(np.maximum(s.scores, c)),
        (*(-b for b in BOUNDS), 0.0, 0.3),
    ),
    Family(
        "below-maximum",
        "Scores are at least the maximum less {}.",
        lambda s, c: s.softmax(np.maximum(s.scores, s.highest - c)),
        BOUNDS,
    ),
    Family(
        "weights-at-most",
        "Weights are at most {}.",
        lambda s, c: np.minimum(s.weights, c),
        (0.9, 0.7, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15),
    ),
    Family(
        "weights-at-least",
        "Weights are at least {}.",
        lambda s, c: np.maximum(s.weights, c),
        (0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3),
    ),
    Family(
        "weights-at-most-normalised",
        "Weights are at most {}, and divided by their sum again.",
        lambda s, c: s.normalised(np.minimum(s.weights, c)),
        (0.9, 0.7, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15),
    ),
    Family(
        "weights-at-least-normalised",
        "Weights are at least {}, and divided by their sum again.",
        lambda s, c: s.normalised(np.maximum(s.weights, c)),
        (0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3),
    ),
    Family(
        "softly-capped",
        "The softmax is of {0} tanh(score / {0}).",
        lambda s, c: s.softmax(c * np.tanh(s.scores / c)),
        BOUNDS[4:],
    ),
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
    Family(
        "leaky",
        "Negative scores are multiplied by {} before the softmax.",
        lambda s, c: s.softmax(np.where(s.scores < 0.0, c * s.scores, s.scores)),
        (0.01, 0.1, 0.2, 0.5, -0.5, 2.0),
    ),
    Family(
        "signed-power",
        "The softmax is of sign(score) |score|^{}.",
        lambda s, c: s.softmax(np.sign(s.scores) * np.abs(s.scores) ** c),
        POWERS[:-2],
    ),
    Family(
        "relu-normalised-plus",
        "Weights are relu(score) over its sum plus {}.",
        lambda s, c: np.maximum(s.scores, 0.0) / (np.maximum(s.scores, 0.0).sum(axis=-1, keepdims=True) + c),
        SMALL,
    ),
    Family(
        "less",
        "Weights have {} taken off, and none is below 0.",
        lambda s, c: np.maximum(s.weights - c, 0.0),
        (1e-3, 0.01, 0.05, 0.1),
    ),
    Family(
        "less-normalised",
        "Weights have {} taken off, none is below 0, and they are divided by their sum again.",
        lambda s, c: s.normalised(np.maximum(s.weights - c, 0.0)),
        (1e-3, 0.01, 0.05, 0.1),
    ),
)
