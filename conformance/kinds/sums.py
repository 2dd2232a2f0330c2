"""Sums: softmaxes that divide by another sum, or by none, and scores that excluded keys have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.kinds.made import bug_of
from conformance.zoo.bug import Bug
from mha_core.reference.state import State, Step

Number = Callable[[State], Any]
"""A number of each call, or one of each head (H, 1, 1)."""

OWN_SUM = "Divide each row by its own sum."
EXCLUDE = "Exclude keys by a score of -inf, or by a weight of 0 before the sum."


def exponentials(scores: NDArray, allowed: NDArray) -> tuple[NDArray, NDArray]:
    """Return exp(score - highest of the row), 0 where excluded; and exp(-highest), 1 in rows without a key."""
    highest = np.where(allowed, scores, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(highest), highest, 0.0)
    return np.where(allowed, np.exp(scores - shift), 0.0), np.exp(-shift)


def with_sum(words: str, slug: str, number: Number, less_highest: bool) -> Bug:
    """Return the bug of a sum of the exponentials, of scores less the highest or as they are, with a number added."""

    def change(state: State, beneath: Step) -> NDArray:
        given, unit = exponentials(state["scores"], state["allowed"])
        total = given.sum(axis=-1, keepdims=True) + number(state) * (1.0 if less_highest else unit)
        return np.where(state["allowed"], given / np.where(total == 0.0, 1.0, total), 0.0)

    of = "exp(score - highest of the row)" if less_highest else "exp(score)"
    sentence = f"The sum of {of} that each row is divided by has {words} added."
    return bug_of(f"sum-plus-{slug}-{less_highest}", sentence, OWN_SUM, {"weights": change})


def without_sum(words: str, slug: str, number: Number) -> Bug:
    """Return the bug of exponentials times a number, without a sum."""

    def change(state: State, beneath: Step) -> NDArray:
        return np.where(state["allowed"], np.exp(state["scores"]) * number(state), 0.0)

    sentence = f"Weights are exp(score) times {words}, and are divided by no sum."
    return bug_of(f"no-sum-{slug}", sentence, OWN_SUM, {"weights": change})


def filled(words: str, slug: str, number: Number, added: bool) -> Bug:
    """Return the bug of excluded keys that have a number as their score, or have it added to theirs."""

    def change(state: State, beneath: Step) -> NDArray:
        scores, n = state["scores"], number(state)
        other = np.where(state["allowed"], scores, scores + n if added else n)
        given = exponentials(other, np.ones_like(other, bool))[0]
        return given / given.sum(axis=-1, keepdims=True) if other.size else beneath(state)

    said = f"{words} is added to excluded scores" if added else f"Excluded scores become {words}"
    slug = f"excluded-{'plus' if added else 'filled'}-{slug}"
    return bug_of(slug, f"{said}, which leaves these keys a weight.", EXCLUDE, {"weights": change})
