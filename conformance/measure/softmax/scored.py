"""Scored: what a softmax is given, and what weights are made of. Form: what may stand where the softmax belongs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.measure.grammar.sample import Setting
from mha_core.reference import forward

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Scored:
    """What a softmax is given: arrays (B, H, Lq, Lk).

    Args:
        scores, allowed: as for the definition's softmax.
        weights: what the softmax beneath gives for them.
        setting: the call.
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
        weights = forward.softmax(scores, allowed)
        return cls(scores, allowed, weights, setting, lambda x: forward.softmax(x, allowed))

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
    def count(self) -> Array:
        """(B, H, Lq, 1): the number of allowed keys, at least 1."""
        return np.maximum(self.allowed.sum(axis=-1, keepdims=True), 1).astype(np.float64)

    def normalised(self, x: Array) -> Array:
        """That over its sum over the allowed keys."""
        x = np.where(self.allowed, x, 0.0)
        return x / np.where(self.has_key, x.sum(axis=-1, keepdims=True), 1.0)

    def kept(self, x: Array, *, excluded: bool = False) -> Array:
        """What is given where a key is allowed (with `excluded` everywhere); rows without a key as they are beneath."""
        x = x if excluded else np.where(self.allowed, x, 0.0)
        return np.where(self.has_key, x, self.weights)


Make = Callable[[Scored], Array]


class Form(NamedTuple):
    """A function in place of the softmax: a name in kebab-case, a sentence, and Scored -> weights."""

    name: str
    words: str
    make: Make
