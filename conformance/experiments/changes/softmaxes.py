"""Softmaxes: what may stand where the softmax belongs: other functions, and families of functions with a number.

A Form makes weights of scores. It is given a Scored, which holds the scores of a row, what is allowed, and the
weights that the right softmax (or the model so far) gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.changes.sample import Setting
from mha_core.reference import forward

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Scored:
    """What a softmax is given: arrays (B, H, Lq, Lk).

    Args:
        scores, allowed: as for the definition's softmax.
        weights: what the softmax beneath gives for them.
        setting: the sizes.
        softmax: scores -> weights, the softmax beneath, for changes of the scores alone.
    """

    scores: Array
    allowed: NDArray[np.bool_]
    weights: Array
    setting: Setting
    softmax: Callable[[Array], Array]

    @classmethod
    def right(cls, scores: Array, allowed: NDArray[np.bool_], setting: Setting) -> Scored:
        """With the definition's softmax beneath."""
        return cls(scores, allowed, forward.softmax(scores, allowed), setting, lambda x: forward.softmax(x, allowed))

    @cached_property
    def open(self) -> Array:
        """The scores, -inf where a key is excluded."""
        return np.where(self.allowed, self.scores, -np.inf)

    @cached_property
    def has_key(self) -> NDArray[np.bool_]:
        return self.allowed.any(axis=-1, keepdims=True)

    @cached_property
    def highest(self) -> Array:
        """(B, H, Lq, 1): the largest allowed score, 0 in a row without one."""
        return np.where(self.has_key, self.open.max(axis=-1, keepdims=True, initial=-np.inf), 0.0)

    @cached_property
    def stable(self) -> Array:
        """exp(score - highest), 0 where excluded."""
        return np.exp(self.open - self.highest)

    @cached_property
    def raw(self) -> Array:
        """exp(score), 0 where excluded."""
        with any_numbers:
            return np.exp(self.open)

    @cached_property
    def stable_sum(self) -> Array:
        return np.where(self.has_key, self.stable.sum(axis=-1, keepdims=True), 1.0)

    @cached_property
    def smallest(self) -> Array:
        """(B, H, Lq, 1): what 1 is beside exponentials less the maximum: exp(-highest)."""
        with any_numbers:
            return np.exp(-self.highest)

    @cached_property
    def raw_sum(self) -> Array:
        return np.where(self.has_key, self.raw.sum(axis=-1, keepdims=True), 1.0)

    @cached_property
    def count(self) -> Array:
        """(B, H, Lq, 1): the number of allowed keys, at least 1."""
        return np.maximum(self.allowed.sum(axis=-1, keepdims=True), 1).astype(np.float64)

    def normalised(self, x: Array) -> Array:
        """That over its sum over the allowed keys."""
        x = np.where(self.allowed, x, 0.0)
        total = x.sum(axis=-1, keepdims=True)
        return x / np.where(self.has_key, total, 1.0)

    def normalised_or_0(self, x: Array) -> Array:
        """As `normalised`, and 0 where that sum is 0."""
        x = np.where(self.allowed, x, 0.0)
        total = x.sum(axis=-1, keepdims=True)
        return np.where(total == 0.0, 0.0, x / np.where(total == 0.0, 1.0, total))

    def kept(self, x: Array, *, excluded: bool = False) -> Array:
        """What is given where a key is allowed (with `excluded` everywhere); rows without a key as they are beneath."""
        x = x if excluded else np.where(self.allowed, x, 0.0)
        return np.where(self.has_key, x, self.weights)


class Form(NamedTuple):
    """A function in place of the softmax.

    name: in kebab-case. words: a sentence. make: Scored -> weights.
    """

    name: str
    words: str
    make: Callable[[Scored], Array]


class Family(NamedTuple):
    """Functions that differ by a number.

    words: a sentence with {} for the number. make: (Scored, the number) -> weights. starts: where to look for it.
    """

    name: str
    words: str
    make: Callable[[Scored, float], Array]
    starts: tuple[float, ...]


def _sparse(s: Scored, power: int) -> Array:
    """Sparsemax (power 1) or entmax with alpha 1.5 (power 2): max(x - tau, 0)^power with tau for a sum of 1."""
    x = (s.open - s.highest) / power
    low, high = np.full_like(s.highest, -1.0), np.zeros_like(s.highest)
    for _ in range(60):
        middle = (low + high) / 2.0
        above = (np.maximum(x - middle, 0.0) ** power).sum(axis=-1, keepdims=True) >= 1.0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return s.normalised(np.maximum(x - low, 0.0) ** power)


def _taylor(order: int, *, stable: bool) -> Callable[[Scored], Array]:
    def make(s: Scored) -> Array:
        x = s.scores - s.highest if stable else s.scores
        term, total = np.ones_like(x), np.ones_like(x)
        for n in range(1, order + 1):
            term = term * x / n
            total = total + term
        return s.normalised(total)

    return make


def _limit(n: int, *, stable: bool) -> Callable[[Scored], Array]:
    return lambda s: s.normalised(np.maximum(1.0 + (s.scores - (s.highest if stable else 0.0)) / n, 0.0) ** n)


def _part_of_sum(part: Callable[[int, int], Array], *, guarded: bool = False) -> Callable[[Scored], Array]:
    """The exponentials over the sum of those that `part(Lq, Lk)` gives a factor; `guarded`: over 1 where that is 0."""

    def make(s: Scored) -> Array:
        total = (s.stable * part(*s.stable.shape[-2:])).sum(axis=-1, keepdims=True)
        return s.stable / (np.where(total == 0.0, 1.0, total) if guarded else total)

    return make


def _in_blocks(width: int) -> Callable[[Scored], Array]:
    def make(s: Scored) -> Array:
        blocks = [slice(start, start + width) for start in range(0, s.scores.shape[-1], width)]
        return np.concatenate(
            [forward.softmax(s.scores[..., block], s.allowed[..., block]) for block in blocks], axis=-1
        )

    return make


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


_FUNCTIONS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "score": ("the score itself", lambda x: x),
    "magnitude": ("the score's magnitude", np.abs),
    "square": ("the score squared", lambda x: x * x),
    "cube": ("the score cubed", lambda x: x**3),
    "relu": ("relu(score)", lambda x: np.maximum(x, 0.0)),
    "relu-squared": ("relu(score)^2", lambda x: np.maximum(x, 0.0) ** 2),
    "elu-plus-1": ("elu(score) + 1", lambda x: np.where(x > 0, x + 1.0, np.exp(np.minimum(x, 0.0)))),
    "sigmoid": ("sigmoid(score)", _sigmoid),
    "softplus": ("log(1 + exp(score))", lambda x: np.logaddexp(0.0, x)),
    "tanh": ("tanh(score)", np.tanh),
    "tanh-plus-1": ("tanh(score) + 1", lambda x: np.tanh(x) + 1.0),
    "silu": ("score * sigmoid(score)", lambda x: x * _sigmoid(x)),
    "sinh": ("sinh(score)", np.sinh),
    "cosh": ("cosh(score)", np.cosh),
    "arctan-plus": ("arctan(score) + pi / 2", lambda x: np.arctan(x) + np.pi / 2.0),
    "gaussian": ("exp(-score^2)", lambda x: np.exp(-x * x)),
    "half-gaussian": ("exp(-score^2 / 2)", lambda x: np.exp(-x * x / 2.0)),
    "cauchy": ("1 / (1 + score^2)", lambda x: 1.0 / (1.0 + x * x)),
    "sine": ("sin(score)", np.sin),
    "cosine": ("cos(score)", np.cos),
    "expm1": ("exp(score) - 1", np.expm1),
    "exp": ("exp(score)", np.exp),
    "exp-squared": ("exp(score)^2", lambda x: np.exp(2.0 * x)),
    "exp-plus-1": ("exp(score) + 1", lambda x: np.exp(x) + 1.0),
    "abs-plus-score": ("score + sqrt(1 + score^2)", lambda x: x + np.sqrt(1.0 + x * x)),
    "softsign-plus-1": ("1 + score / (1 + |score|)", lambda x: 1.0 + x / (1.0 + np.abs(x))),
}
"""Name -> (words, the function), of each score alone."""


def _each(name: str, words: str, function: Callable[[Array], Array]) -> tuple[Form, ...]:
    def of(s: Scored) -> Array:
        return np.where(s.allowed, function(s.scores), 0.0)

    def over_magnitudes(s: Scored) -> Array:
        return of(s) / np.abs(of(s)).sum(axis=-1, keepdims=True)

    def over_norm(s: Scored) -> Array:
        return of(s) / np.sqrt((of(s) ** 2).sum(axis=-1, keepdims=True))

    return (
        Form(f"{name}-alone", f"Weights are {words}, not divided by their sum.", of),
        Form(f"{name}-normalised", f"Weights are {words} over the sum of the row.", lambda s: s.normalised(of(s))),
        Form(
            f"{name}-normalised-or-0",
            f"Weights are {words} over the sum of the row, and 0 where that is 0.",
            lambda s: s.normalised_or_0(of(s)),
        ),
        Form(f"{name}-over-magnitudes", f"Weights are {words} over the sum of their magnitudes.", over_magnitudes),
        Form(f"{name}-over-norm", f"Weights are {words} over the root of the sum of their squares.", over_norm),
        Form(f"softmax-of-{name}", f"The softmax is of {words} in place of the score.", lambda s: s.softmax(of(s))),
    )


def _entropy(s: Scored) -> Array:
    return -s.weights * np.log(np.where(s.weights > 0.0, s.weights, 1.0))


OTHERS = (
    Form("weights", "Weights are those of the softmax.", lambda s: s.weights),
    *(form for name, (words, function) in _FUNCTIONS.items() for form in _each(name, words, function)),
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
    Form("hardmax", "The key with the largest score has all the weight.", lambda s: s.normalised(s.stable == 1.0)),
    Form("sparsemax", "A sparsemax stands where the softmax belongs.", lambda s: _sparse(s, 1)),
    Form("entmax-1.5", "An entmax with alpha 1.5 stands where the softmax belongs.", lambda s: _sparse(s, 2)),
    Form("twice", "The softmax is applied twice.", lambda s: s.softmax(s.weights)),
    Form("log", "Weights are the logarithm of the softmax.", lambda s: np.log(np.where(s.allowed, s.weights, 1.0))),
    Form("log-normalised", "Weights are log softmax over its sum.", lambda s: s.normalised(np.log(s.weights))),
    Form("negative-log", "Weights are minus the logarithm of the softmax.", lambda s: -np.log(s.weights)),
    Form("one-less", "Weights are 1 - softmax.", lambda s: 1.0 - s.weights),
    Form("one-less-normalised", "Weights are 1 - softmax over its sum.", lambda s: s.normalised(1.0 - s.weights)),
    Form("times-one-less", "Weights are w (1 - w) of the right ones w.", lambda s: s.weights * (1.0 - s.weights)),
    Form("entropy", "Weights are -w log w of the right ones w.", _entropy),
    Form(
        "linear-from-maximum",
        "Weights are 1 / (1 + maximum - score), normalised.",
        lambda s: s.normalised(1.0 / (1.0 + s.highest - s.scores)),
    ),
    Form("cumulated", "Weights are summed up from key to key.", lambda s: np.cumsum(s.weights, axis=-1)),
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
    Form(
        "less-mean",
        "Weights are less their mean.",
        lambda s: s.weights - s.weights.sum(axis=-1, keepdims=True) / s.count,
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
            ("even", "the keys at even places", lambda q, k: np.arange(k) % 2 == 1),
            ("later", "keys after the query's own place", lambda q, k: np.tri(q, k)),
            ("second-half", "the second half of the keys", lambda q, k: np.arange(k) < (k + 1) // 2),
        )
    ),
    *(
        Form(f"first-counted-twice-{name}", f"The sum that is divided by counts {words} twice.", _part_of_sum(part))
        for name, words, part in (
            ("first", "the first key", lambda q, k: 1.0 + (np.arange(k) == 0)),
            ("last", "the last key", lambda q, k: 1.0 + (np.arange(k) == k - 1)),
            ("own", "key i for query i", lambda q, k: 1.0 + np.eye(q, k)),
        )
    ),
    *(
        Form(f"blocks-of-{n}", f"The softmax runs over each {n} keys by themselves.", _in_blocks(n))
        for n in (2, 3, 4, 8, 16)
    ),
    *(
        Form(
            f"taylor-{order}{'-stable' if stable else ''}",
            f"exp is replaced by its Taylor polynomial of order {order}.",
            _taylor(order, stable=stable),
        )
        for order in range(1, 7)
        for stable in (False, True)
    ),
    *(
        Form(
            f"limit-{n}{'-stable' if stable else ''}",
            f"exp(x) is replaced by (1 + x / {n})^{n}.",
            _limit(n, stable=stable),
        )
        for n in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        for stable in (False, True)
    ),
)
"""Forms without a number; each also times a number, see the softmax probe."""
