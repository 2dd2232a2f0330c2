"""Exclusion done wrongly: which number stands in place of an excluded score, or is added to it, and when.

With a row's scores s, and excluded keys e beside allowed keys a,

    filled with c:  log w_e - log w_a = c - s_a          c added:  log w_e - log w_a = s_e + c - s_a
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.measured import around
from conformance.zoo.bug import Bug
from mha_core.call.masks import additive_bias
from mha_core.reference.state import State, Step

FIX = "Exclude keys exactly: -inf before the softmax, or 0 after the exponential and before the sum."

FILLS = (
    *(0.0, -1.0, -10.0, -50.0, -100.0, -1e3, -1e4, -1e5, -1e6, -1e7, -1e8, -1e9, -1e10, -1e12, -1e15, -1e20, -1e30),
    *(-65504.0, -32768.0, -65536.0, -(2.0**31), -3e4, -(2.0**32) + 1, -99999.0, -999999.0, -9e15, -1e-9, 1e-9),
    float(np.finfo(np.float32).min),
    float(np.finfo(np.float32).min) / 2,
    float(np.finfo(np.float64).min),
    float(np.finfo(np.float16).min),
)
"""Constants in use; others are read off."""

Scores = Callable[[State], NDArray]
"""(state) -> the scores that the softmax over all keys gets."""


def softmax_of(slug: str, sentence: str, scores: Scores, *, repaired: bool = False, fix: str = FIX) -> Bug:
    """A bug by which the softmax runs over all keys, of other scores.

    Args:
        slug, sentence, fix: as for any bug.
        scores: (state) -> (B, H, Lq, Lk).
        repaired: whether rows without an allowed key have the weights 0 all the same.
    """

    def changed(state: State, beneath: Step) -> NDArray:
        allowed = state["allowed"]
        other = {**state.arrays, "scores": scores(state), "allowed": np.ones_like(allowed)}
        found: NDArray = beneath(replace(state, arrays=other))
        return np.where(allowed.any(axis=-1, keepdims=True), found, 0.0) if repaired else found

    slug = f"{slug}-empty-rows-0" if repaired else slug
    sentence = f"{sentence} Rows without an allowed key are 0." if repaired else sentence
    return around("weights", slug, changed, sentence, fix)


def filled(number: float, words: str = "", *, of: Callable[[State], float] | None = None) -> Iterator[Bug]:
    """Excluded scores made by a number, or by `of(state)`: before or after the bias, with empty rows of 0 or not."""
    words = words or f"{number:.9g}"
    slug = words.replace(" ", "")

    def fill(state: State) -> float:
        return number if of is None else of(state)

    def after(state: State) -> NDArray:
        return np.where(state["allowed"], state["scores"], fill(state))

    def before_bias(state: State) -> NDArray:
        bias = state.inputs.mask.bias
        extra = 0.0 if bias is None else additive_bias(state.inputs.mask)
        return np.where(state["allowed"], state["scores"], fill(state) + extra)

    for repaired in (False, True):
        sentence = f"Excluded scores become {words}, and not -inf."
        yield softmax_of(f"excluded-filled-{slug}", sentence, after, repaired=repaired)
    yield softmax_of(
        f"excluded-filled-{slug}-before-bias",
        f"Excluded scores become {words}, and not -inf, before the bias is added.",
        before_bias,
    )


def added(number: float, words: str = "", *, of: Callable[[State], float] | None = None) -> Iterator[Bug]:
    """A number added to excluded scores, or `of(state)`."""
    if number == 0.0 and of is None:
        return
    words = words or f"{number:.9g}"

    def shifted(state: State) -> NDArray:
        extra = number if of is None else of(state)
        return np.where(state["allowed"], state["scores"], state["scores"] + extra)

    for repaired in (False, True):
        yield softmax_of(
            f"excluded-plus-{words.replace(' ', '')}",
            f"{words} is added to excluded scores, which leaves them a weight.",
            shifted,
            repaired=repaired,
        )


def multiplied(number: float) -> Iterator[Bug]:
    """Excluded scores times a number."""
    yield softmax_of(
        f"excluded-times-{number:.9g}",
        f"Excluded scores are multiplied by {number:.9g}, and not excluded.",
        lambda state: np.where(state["allowed"], state["scores"], number * state["scores"]),
    )


@cache
def exclusion_bugs() -> tuple[Bug, ...]:
    """Every way of excluding keys wrongly whose numbers are known beforehand."""
    return tuple(_all())


def _all() -> Iterator[Bug]:
    yield from _after_the_softmax()
    for number in FILLS:
        yield from filled(number)
        yield from added(number)
    for number in (-1.0, 0.5, 2.0, 1e9):
        yield from multiplied(number)


def _after_the_softmax() -> Iterator[Bug]:
    """Weights over all keys, and the mask on them afterwards."""

    def over_all(state: State, beneath: Step) -> NDArray:
        other = {**state.arrays, "allowed": np.ones_like(state["allowed"])}
        found: NDArray = beneath(replace(state, arrays=other))
        return found

    def masked(state: State, beneath: Step) -> NDArray:
        return np.where(state["allowed"], over_all(state, beneath), 0.0)

    yield around(
        "weights",
        "mask-after-softmax",
        masked,
        "Excluded keys count in the sum of the softmax, and get the weight 0 afterwards: rows sum to less than 1.",
        FIX,
    )
    for epsilon in (0.0, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3):

        def renormalised(state: State, beneath: Step, epsilon: float = epsilon) -> NDArray:
            kept = masked(state, beneath)
            return kept / (kept.sum(axis=-1, keepdims=True) + epsilon)

        yield around(
            "weights",
            f"mask-after-softmax-renormalised-{epsilon:g}",
            renormalised,
            f"The mask is applied after the softmax, and the rest divided by its sum plus {epsilon:g}.",
            FIX,
        )

    def by_mean(state: State, beneath: Step) -> NDArray:
        allowed = state["allowed"]
        n = np.maximum(allowed.shape[-1], 1)
        return beneath(state) * allowed.sum(axis=-1, keepdims=True) / n

    yield around(
        "weights",
        "weights-times-share-allowed",
        by_mean,
        "Weights are multiplied by the share of keys that is allowed: excluded keys count in a mean.",
        FIX,
    )
