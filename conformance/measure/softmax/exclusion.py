"""Exclusion: what excluded keys have in place of -inf, and masks that act after the softmax.

With a row's scores s, and excluded keys e beside allowed keys a,

    filled with c:  log w_e - log w_a = c - s_a          c added:  log w_e - log w_a = s_e + c - s_a
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.evidence import Evidence
from conformance.measure.faults import bug_of, with_arrays
from conformance.measure.grammar.numbers import roundest
from conformance.measure.read.weights import read_weights
from conformance.zoo.bug import Bug
from mha_core.call.masks import additive_bias
from mha_core.reference.state import State, Step

OF_EXCLUSION = "Exclude keys exactly: -inf before the softmax, or 0 after the exponential and before the sum."

FILLS = (
    *(0.0, -1.0, -10.0, -50.0, -100.0, -1e3, -1e4, -1e5, -1e6, -1e7, -1e8, -1e9, -1e10, -1e12, -1e15, -1e20, -1e30),
    *(-65504.0, -32768.0, -65536.0, -(2.0**31), -3e4, -(2.0**32) + 1, -99999.0, -999999.0, -9e15, -1e-9, 1e-9),
    *(float(np.finfo(dtype).min) for dtype in ("float32", "float64", "float16")),
    float(np.finfo("float32").min) / 2,
)
"""Constants in use; others are read off."""


def _softmax_of(slug: str, sentence: str, scores: Callable[[State], NDArray], *, repaired: bool = False) -> Bug:
    """A bug by which the softmax runs over all keys, of other scores; `repaired`: rows without a key stay 0."""

    def changed(state: State, beneath: Step) -> NDArray:
        allowed = state["allowed"]
        found: NDArray = beneath(with_arrays(state, scores=scores(state), allowed=np.ones_like(allowed)))
        return np.where(allowed.any(axis=-1, keepdims=True), found, 0.0) if repaired else found

    end = " Rows without an allowed key are 0." if repaired else ""
    slug = f"{slug}-empty-rows-0" if repaired else slug
    return bug_of(slug, f"{sentence}{end}", OF_EXCLUSION, "weights", changed)


def filled(number: float) -> Iterator[Bug]:
    """Excluded scores that are a number, before or after the bias; and excluded scores to which it is added."""

    def before_bias(state: State) -> NDArray:
        bias = state.inputs.mask.bias
        extra = 0.0 if bias is None else additive_bias(state.inputs.mask)
        return np.where(state["allowed"], state["scores"], number + extra)

    def instead(state: State) -> NDArray:
        return np.where(state["allowed"], state["scores"], number)

    def added(state: State) -> NDArray:
        return np.where(state["allowed"], state["scores"], state["scores"] + number)

    words = f"{number:.9g}"
    sentence = f"Excluded scores become {words}, and not -inf"
    plus = f"{words} is added to excluded scores, which leaves them a weight."
    for repaired in (False, True):
        yield _softmax_of(f"excluded-filled-{words}", f"{sentence}.", instead, repaired=repaired)
    yield _softmax_of(f"excluded-filled-{words}-before-bias", f"{sentence}, before the bias is added.", before_bias)
    for repaired in (False, True) if number else ():
        yield _softmax_of(f"excluded-plus-{words}", plus, added, repaired=repaired)


@cache
def exclusion_bugs() -> tuple[Bug, ...]:
    """Every way of excluding keys wrongly whose numbers are known beforehand."""
    return (*_after_the_softmax(), *(bug for number in FILLS for bug in filled(number)))


def over_all(state: State, beneath: Step) -> NDArray:
    """The weights over all keys, excluded or not."""
    found: NDArray = beneath(with_arrays(state, allowed=np.ones_like(state["allowed"])))
    return found


def _after_the_softmax() -> Iterator[Bug]:
    """Weights over all keys, and the mask on them afterwards."""

    def masked(state: State, beneath: Step) -> NDArray:
        return np.where(state["allowed"], over_all(state, beneath), 0.0)

    words = "Excluded keys count in the sum of the softmax, and get the weight 0 afterwards: rows sum to less than 1."
    yield bug_of("mask-after-softmax", words, OF_EXCLUSION, "weights", masked)
    for epsilon in (0.0, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3):

        def renormalised(state: State, beneath: Step, epsilon: float = epsilon) -> NDArray:
            kept = masked(state, beneath)
            return kept / (kept.sum(axis=-1, keepdims=True) + epsilon)

        words = f"The mask is applied after the softmax, and the rest divided by its sum plus {epsilon:g}."
        yield bug_of(f"mask-after-softmax-renormalised-{epsilon:g}", words, OF_EXCLUSION, "weights", renormalised)

    def by_share(state: State, beneath: Step) -> NDArray:
        allowed = state["allowed"]
        return beneath(state) * allowed.sum(axis=-1, keepdims=True) / np.maximum(allowed.shape[-1], 1)

    words = "Weights are multiplied by the share of keys that is allowed: excluded keys count in a mean."
    yield bug_of("weights-times-share-allowed", words, OF_EXCLUSION, "weights", by_share)


MISSING, ROUNDOFFS = 1e-9, 2000.0
"""What a row may lack of 1 by rounding; unit roundoffs by which what is read off may be wrong."""


def excluded(evidence: Evidence) -> Iterator[Bug]:
    """Constants that are read off where excluded keys have a weight; and those in use."""
    for problem in evidence.differing():
        for number in read_constants(evidence, problem):
            yield from filled(number)
    yield from exclusion_bugs()


def read_constants(evidence: Evidence, problem: Problem) -> list[float]:
    """What would have to stand in place of every excluded score, and what would have to be added: those that are one.

    Rows of several allowed keys count with the logarithm of their mean weights and scores.
    """
    weights, model = read_weights(evidence.got, problem), evidence.made_all(problem)
    if weights is None or model is None:
        return []
    allowed, scores = problem.allowed(), np.asarray(model["scores"])
    # Padded keys' values are 0 and show nothing: they share what rows lack of 1.
    hidden = np.broadcast_to(problem.padding()[:, None, None, :], weights.shape) & (weights == 0.0)
    missing = 1.0 - weights.sum(axis=-1, keepdims=True)
    share = np.where(missing > MISSING, missing, 0.0) / np.maximum(hidden.sum(axis=-1, keepdims=True), 1)
    weights = np.where(hidden, share, weights)
    with any_numbers:
        logs = np.log(np.where(weights > 0.0, weights, np.nan))
        counts = allowed.sum(axis=-1, keepdims=True)
        of_allowed = np.where(allowed, logs - scores, 0.0).sum(axis=-1, keepdims=True) / counts
    found = np.where(allowed, np.nan, logs - of_allowed)
    unit = evidence.asker.unit * max(1.0, float(np.abs(scores).max(initial=0.0)))
    return [number for array in (found, found - scores) if (number := _one_number(array, unit)) is not None]


def _one_number(array: NDArray, unit: float) -> float | None:
    """The number that all finite entries are, in as few digits as their error allows; None if they differ."""
    known = array[np.isfinite(array)]
    if not known.size:
        return None
    middle = float(np.median(known))
    error = ROUNDOFFS * max(unit, unit * abs(middle))
    return roundest(middle - error, middle + error) if np.ptp(known) <= error else None
