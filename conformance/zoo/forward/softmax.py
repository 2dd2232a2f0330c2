"""The softmax done wrong: its axis, how keys are excluded, rows without a key, its maximum and its denominator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug
from mha_core.reference import forward
from mha_core.reference.forward import softmax
from mha_core.reference.state import State, Step

AXIS_FIX = "Take the softmax over the keys, the last axis of (B, H, Lq, Lk)."
EXCLUDE_FIX = (
    "Exclude keys exactly: -inf before the softmax, or 0 after the exponential and before the sum; never a finite fill."
)
EMPTY_FIX = "Give a row without an allowed key the weights 0."
MAXIMUM_FIX = "Subtract from each row the maximum of its own allowed scores."
DENOMINATOR_FIX = "Divide the exponentials by their own sum, and nothing else."


def _plain_softmax(scores: NDArray, axis: int | tuple[int, ...] = -1) -> NDArray:
    """Softmax over the given axes; NaN where all scores are -inf, as plain implementations give."""
    exponentials = np.exp(scores - scores.max(axis=axis, keepdims=True, initial=-np.inf))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def _open_scores(state: State, fill: float = -np.inf) -> NDArray:
    return np.where(state["allowed"], state["scores"], fill)


def _has_key(state: State) -> NDArray:
    """(B, H, Lq, 1): whether the row has an allowed key."""
    return state["allowed"].any(axis=-1, keepdims=True)


def _only_allowed(state: State, weights: NDArray) -> NDArray:
    return np.where(state["allowed"], weights, 0.0)


def _bug(id: str, sentence: str, fix: str, step: Step, seen_in: str = "", *, stage: str = "weights") -> Bug:
    return Bug(id, sentence, stage, fix, forward={"weights": step}, seen_in=seen_in)


# The axis -----------------------------------------------------------------------------------------


def _over(axis: int | tuple[int, ...]) -> Step:
    return lambda state: _only_allowed(state, _plain_softmax(_open_scores(state), axis))


AXIS = (
    _bug("softmax-over-queries", "The softmax runs over the queries.", AXIS_FIX, _over(-2), "PetrochukM/PyTorch-NLP#2"),
    _bug("softmax-over-heads", "The softmax runs over the heads.", AXIS_FIX, _over(1)),
    _bug("softmax-over-batch", "The softmax runs over the batch.", AXIS_FIX, _over(0)),
    _bug("softmax-over-both", "The softmax runs over queries and keys together.", AXIS_FIX, _over((-2, -1))),
)


# Exclusion ----------------------------------------------------------------------------------------


def _filled(fill: float, *, repaired: bool) -> Step:
    """`fill` in place of excluded scores; `repaired`: and 0 in rows without a key."""

    def weights(state: State) -> NDArray:
        found = _plain_softmax(_open_scores(state, fill))
        return np.where(_has_key(state), found, 0.0) if repaired else found

    return weights


def _added(fill: float) -> Step:
    return lambda state: _plain_softmax(state["scores"] + np.where(state["allowed"], 0.0, fill))


def _after_softmax(state: State) -> NDArray:
    return _only_allowed(state, _plain_softmax(state["scores"]))


def _after_softmax_renormalised(state: State) -> NDArray:
    kept = _after_softmax(state)
    return kept / (kept.sum(axis=-1, keepdims=True) + 1e-9)


def _times_infinity(state: State) -> NDArray:
    """Scores + (1 - mask) * -inf: 0 * inf is NaN."""
    return state["scores"] + (1.0 - state["allowed"]) * -np.inf


EXCLUSION = (
    _bug(
        "fill-zero",
        "Excluded scores become 0, as by multiplying with the mask; 0 is a score like any other.",
        EXCLUDE_FIX,
        _filled(0.0, repaired=False),
    ),
    _bug(
        "fill-one-billionth",
        "Excluded scores become -1e-9 where -1e9 was meant.",
        EXCLUDE_FIX,
        _filled(-1e-9, repaired=False),
    ),
    _bug(
        "fill-1e6",
        "Excluded scores become -1e6, which real scores can go below.",
        EXCLUDE_FIX,
        _filled(-1e6, repaired=True),
    ),
    _bug(
        "fill-1e9",
        "Excluded scores become -1e9, which real scores can go below.",
        EXCLUDE_FIX,
        _filled(-1e9, repaired=True),
    ),
    _bug(
        "fill-lowest",
        "Excluded scores become the dtype's lowest number, so a row without a key averages all values.",
        EMPTY_FIX,
        _filled(float(np.finfo(np.float32).min), repaired=False),
        "d2l-ai/d2l-en#2423",
    ),
    _bug(
        "fill-added",
        "-1e4 is added to excluded scores, as in BERT: a row without a key attends as if there were no mask.",
        EXCLUDE_FIX,
        _added(-1e4),
        "google-research/bert modeling.py",
    ),
    Bug(
        "mask-times-infinity",
        "The mask is (1 - mask) * -inf, which is NaN where a key is allowed.",
        "scores",
        "Choose with where(allowed, scores, -inf); do not multiply by infinity.",
        forward={"scores": lambda state: forward.scores(state) + (1.0 - state["allowed"]) * -np.inf},
    ),
    _bug(
        "mask-after-softmax",
        "The mask is applied after the softmax, so the rest no longer sums to 1.",
        EXCLUDE_FIX,
        _after_softmax,
    ),
    _bug(
        "mask-after-softmax-renormalised",
        "The mask is applied after the softmax, and the rest divided by its sum plus 1e-9.",
        EXCLUDE_FIX,
        _after_softmax_renormalised,
    ),
)


# Rows without a key -------------------------------------------------------------------------------


def _in_empty_rows(replacement: Callable[[State], NDArray | float]) -> Step:
    return lambda state: np.where(_has_key(state), forward.weights(state), replacement(state))


def _nan_by_bias(state: State) -> NDArray:
    """NaN in rows that -inf in the bias empties by itself."""
    bias = state.inputs.mask.bias
    if bias is None or not state.sizes.key_len:
        return forward.weights(state)
    emptied = np.isneginf(np.broadcast_to(bias, state["scores"].shape)).all(axis=-1, keepdims=True)
    return np.where(emptied, np.nan, forward.weights(state))


def _first_key(state: State) -> NDArray:
    return (np.arange(state.sizes.key_len) == 0).astype(np.float64)


EMPTY_ROWS = (
    _bug(
        "empty-row-nan",
        "A row without an allowed key is NaN.",
        EMPTY_FIX,
        _in_empty_rows(lambda s: np.nan),
        "pytorch/pytorch#41508",
    ),
    _bug(
        "bias-infinity-nan",
        "A row of -inf in the additive bias is NaN: -inf - -inf.",
        EMPTY_FIX,
        _nan_by_bias,
    ),
    _bug(
        "empty-row-attends-all",
        "A row without an allowed key attends to all keys by their scores.",
        EMPTY_FIX,
        _in_empty_rows(lambda s: _plain_softmax(s["scores"])),
    ),
    _bug(
        "empty-row-attends-first",
        "A row without an allowed key attends to key 0.",
        EMPTY_FIX,
        _in_empty_rows(_first_key),
    ),
)


# The maximum and the sum --------------------------------------------------------------------------


def _shifted_by(highest: Callable[[State, NDArray], NDArray | float]) -> Step:
    """exp(score - highest(state, scores)) / sum, 0 in rows without a key."""

    def weights(state: State) -> NDArray:
        exponentials = np.exp(_open_scores(state) - highest(state, _open_scores(state)))
        total = np.where(_has_key(state), exponentials.sum(axis=-1, keepdims=True), 1.0)
        return _only_allowed(state, exponentials / total)

    return weights


def _clamped(state: State, scores: NDArray) -> NDArray:
    return scores.max(axis=-1, keepdims=True, initial=0.0)


def _of_excluded_too(state: State, scores: NDArray) -> NDArray:
    return state["scores"].max(axis=-1, keepdims=True, initial=-np.inf)


def _of_tensor(state: State, scores: NDArray) -> NDArray:
    return scores.max(initial=-np.inf)


def _over_total(total: Callable[[NDArray], NDArray]) -> Step:
    """Stable exponentials divided by `total(their sum)`."""

    def weights(state: State) -> NDArray:
        scores = _open_scores(state)
        highest = np.where(_has_key(state), scores.max(axis=-1, keepdims=True, initial=-np.inf), 0.0)
        exponentials = np.exp(scores - highest)
        return _only_allowed(state, exponentials / total(exponentials.sum(axis=-1, keepdims=True)))

    return weights


def _on_scores(change: Callable[[NDArray], NDArray]) -> Step:
    """The definition's softmax of other scores."""
    return lambda state: softmax(change(state["scores"]), state["allowed"])


def _twice(state: State) -> NDArray:
    return softmax(forward.weights(state), state["allowed"])


NORMALISATION = (
    _bug(
        "maximum-of-tensor",
        "The maximum is taken over the whole tensor: quieter rows underflow to 0 / 0.",
        MAXIMUM_FIX,
        _shifted_by(_of_tensor),
        "deeplearning4j/deeplearning4j-examples#730",
    ),
    _bug(
        "maximum-missing",
        "No maximum is subtracted: the exponential overflows.",
        MAXIMUM_FIX,
        _shifted_by(lambda s, scores: 0.0),
    ),
    _bug(
        "maximum-clamped",
        "The maximum is at least 0: rows of very negative scores underflow.",
        MAXIMUM_FIX,
        _shifted_by(_clamped),
    ),
    _bug(
        "maximum-of-excluded",
        "The maximum covers excluded scores: a large one makes the row underflow.",
        MAXIMUM_FIX,
        _shifted_by(_of_excluded_too),
    ),
    _bug(
        "denominator-plus-one",
        "1 is added to the sum of exponentials.",
        DENOMINATOR_FIX,
        _over_total(lambda total: total + 1.0),
    ),
    _bug(
        "denominator-epsilon",
        "1e-6 is added to the sum of exponentials.",
        DENOMINATOR_FIX,
        _over_total(lambda total: total + 1e-6),
    ),
    _bug(
        "softmax-base-two",
        "Powers of 2 stand where powers of e belong: log2(e) is missing.",
        "Use exp, or exp2 of scores times log2(e).",
        _on_scores(lambda x: x * np.log(2.0)),
    ),
    _bug("softmax-twice", "The softmax is applied twice.", "Apply the softmax once.", _twice),
    _bug(
        "softmax-of-clamped",
        "Scores are clamped to [-50, 50] before the exponential.",
        "Subtract the row's maximum; do not clamp.",
        _on_scores(lambda x: np.clip(x, -50.0, 50.0)),
    ),
    _bug(
        "softmax-missing",
        "Scores are used as weights, without a softmax.",
        "Apply the softmax to the scores.",
        lambda s: _only_allowed(s, s["scores"]),
    ),
    _bug(
        "softmax-log",
        "The logarithm of the softmax is used.",
        "Use softmax, not log_softmax.",
        lambda s: _only_allowed(s, np.log(forward.weights(s))),
    ),
    _bug(
        "softmax-sigmoid",
        "A sigmoid stands where the softmax belongs.",
        "Normalise over the keys with a softmax.",
        lambda s: _only_allowed(s, 1.0 / (1.0 + np.exp(-s["scores"]))),
    ),
    _bug(
        "nan-hidden",
        "NaN weights are replaced by 0.",
        "Let NaN through; guard rows without a key by the mask, not by their value.",
        lambda s: np.nan_to_num(forward.weights(s)),
    ),
)

BUGS = (*AXIS, *EXCLUSION, *EMPTY_ROWS, *NORMALISATION)
