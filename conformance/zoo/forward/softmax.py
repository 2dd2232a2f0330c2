"""The softmax done wrong: its axis, how keys are excluded, rows without a key, its maximum and its denominator."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Contradiction, Steps, Table, after
from mha_core.reference.forward import FORWARD, padding, softmax
from mha_core.reference.state import State

Rule = Callable[[State], NDArray]


def plain_softmax(scores: NDArray, axis: int | tuple[int, ...] = -1) -> NDArray:
    """Return the softmax over the given axes; NaN where all scores are -inf, as in plain implementations."""
    exponentials = np.exp(scores - scores.max(axis=axis, keepdims=True, initial=-np.inf))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def open_scores(state: State, fill: float = -np.inf) -> NDArray:
    return np.where(state["allowed"], state["scores"], fill)


def highest_of(scores: NDArray) -> NDArray:
    """Return (..., 1): the maximum of each row of scores (..., Lk), -inf in a row without a key."""
    return scores.max(axis=-1, keepdims=True, initial=-np.inf)


def has_key(state: State) -> NDArray:
    """Return bool (B, H, Lq, 1): whether the row has an allowed key."""
    return state["allowed"].any(axis=-1, keepdims=True)


def _allowed_weights(rule: Rule) -> Steps:
    """`rule(state)` in place of the weights, and 0 where a key is excluded."""
    return {"weights": lambda s: np.where(s["allowed"], rule(s), 0.0)}


# The axis -----------------------------------------------------------------------------------------


def _over(axis: int | tuple[int, ...]) -> Steps:
    return _allowed_weights(lambda s: plain_softmax(open_scores(s), axis))


_row = Table("weights", "Take the softmax over the keys, the last axis of (B, H, Lq, Lk).")

AXIS = (
    _row("softmax-over-queries", "The softmax runs over the queries.", _over(-2), seen_in="PetrochukM/PyTorch-NLP#2"),
    _row("softmax-over-heads", "The softmax runs over the heads.", _over(1)),
    _row("softmax-over-batch", "The softmax runs over the batch.", _over(0)),
    _row("softmax-over-both", "The softmax runs over queries and keys together.", _over((-2, -1))),
)


# Exclusion ----------------------------------------------------------------------------------------


def _filled(fill: float) -> Steps:
    """`fill` in place of excluded scores."""
    return {"weights": lambda s: plain_softmax(open_scores(s, fill))}


def _filled_and_repaired(fill: float) -> Steps:
    """`fill` in place of excluded scores, and 0 in rows without a key."""
    return {"weights": lambda s: np.where(has_key(s), plain_softmax(open_scores(s, fill)), 0.0)}


def _added(number: float) -> Steps:
    """`number` added to excluded scores."""
    return {"weights": lambda s: plain_softmax(s["scores"] + np.where(s["allowed"], 0.0, number))}


def let_in(state: State) -> NDArray:
    """Return bool (B, H, Lq, Lk): keys that the mask allows. Raises Contradiction if another bug inverts the mask."""
    allowed = state["allowed"]
    if allowed.size and (allowed != FORWARD["allowed"](state)).all():
        raise Contradiction("the mask is read the wrong way round twice")
    return allowed


def no_padding(state: State) -> NDArray:
    """Return bool (B, Lk), all False (no padding), for bugs that attend to keys that the mask should exclude."""
    return np.zeros_like(padding(state))


def _renormalised(state: State) -> NDArray:
    kept = np.where(state["allowed"], plain_softmax(state["scores"]), 0.0)
    return kept / (kept.sum(axis=-1, keepdims=True) + 1e-9)


EXACTLY = (
    "Exclude keys exactly: -inf before the softmax, or 0 after the exponential and before the sum; never a finite fill."
)
_row = Table("weights", EXACTLY)
_empty = Table("weights", "Give a row without an allowed key the weights 0.")
_added_row = Table(
    "weights", "Exclude keys exactly, by -inf before the softmax, and give a row without an allowed key the weights 0."
)

RIGHT_WAY = "True means that the query may attend to the key, in the whole mask."

EXCLUSION = (
    _row(
        "fill-zero",
        "Excluded scores become 0, as by multiplying with the mask; 0 is a score like any other.",
        _filled(0.0),
    ),
    _row("fill-one-billionth", "Excluded scores become -1e-9 where -1e9 was meant.", _filled(-1e-9)),
    _row("fill-1e6", "Excluded scores become -1e6, which real scores can go below.", _filled_and_repaired(-1e6)),
    _row("fill-1e9", "Excluded scores become -1e9, which real scores can go below.", _filled_and_repaired(-1e9)),
    _empty(
        "fill-lowest",
        "Excluded scores become the dtype's lowest number, so a row without a key averages all values.",
        _filled(float(np.finfo(np.float32).min)),
        seen_in="d2l-ai/d2l-en#2423",
    ),
    _empty(
        "fill-1e9-averaged",
        "Excluded scores become a finite number such as -1e9: a row without a key averages all values.",
        _filled(-1e9),
    ),
    _added_row(
        "fill-added",
        "-1e4 is added to excluded scores, as in BERT: a row without a key attends as if there were no mask.",
        _added(-1e4),
        seen_in="google-research/bert modeling.py",
    ),
    _added_row(
        "fill-added-1e9",
        "A finite number, -1e9, is added to excluded scores: a row without a key attends as if there were no mask "
        "(in float32 to all keys alike).",
        _added(-1e9),
        seen_in="tensorflow.org/text/tutorials/transformer (2019)",
    ),
    _row(
        "mask-inverted-added",
        "The mask is read the wrong way round: -1e9 is added to the scores of the keys that it lets in.",
        {"weights": lambda s: plain_softmax(s["scores"] + np.where(let_in(s), -1e9, 0.0)), "padding": no_padding},
        fix=RIGHT_WAY,
    ),
    _row(
        "mask-inverted-filled",
        "The mask is read the wrong way round: the scores of the keys that it lets in become -1e9.",
        {"weights": lambda s: plain_softmax(np.where(let_in(s), -1e9, s["scores"])), "padding": no_padding},
        fix=RIGHT_WAY,
    ),
    _row(
        "mask-times-infinity",
        "The mask is (1 - mask) * -inf, which is NaN where a key is allowed.",
        after("scores", lambda s, right: right + (1.0 - s["allowed"]) * -np.inf),
        stage="scores",
        fix="Choose with where(allowed, scores, -inf); do not multiply by infinity.",
    ),
    _row(
        "mask-after-softmax",
        "The mask is applied after the softmax, so the rest no longer sums to 1.",
        _allowed_weights(lambda s: plain_softmax(s["scores"])),
    ),
    _row(
        "mask-after-softmax-renormalised",
        "The mask is applied after the softmax, and the rest divided by its sum plus 1e-9.",
        {"weights": _renormalised},
    ),
)


# Rows without a key -------------------------------------------------------------------------------


def _in_empty_rows(replacement: Callable[[State], NDArray | float]) -> Steps:
    return after("weights", lambda s, right: np.where(has_key(s), right, replacement(s)))


def _nan_by_bias(state: State, right: NDArray) -> NDArray:
    """NaN in rows that -inf in the bias empties by itself."""
    bias = np.broadcast_to(state.inputs.mask.bias, right.shape)
    return np.where(np.isneginf(bias).all(axis=-1, keepdims=True), np.nan, right)


EMPTY_ROWS = (
    _empty(
        "empty-row-nan",
        "A row without an allowed key is NaN.",
        _in_empty_rows(lambda s: np.nan),
        seen_in="pytorch/pytorch#41508",
    ),
    _empty(
        "bias-infinity-nan",
        "A row of -inf in the additive bias is NaN: -inf - -inf.",
        after("weights", _nan_by_bias, lambda s: s.inputs.mask.bias is not None and s.sizes.key_len > 0),
    ),
    _empty(
        "empty-row-attends-all",
        "A row without an allowed key attends to all keys by their scores.",
        _in_empty_rows(lambda s: plain_softmax(s["scores"])),
    ),
    _empty(
        "empty-row-without-bias",
        "The output of a row without an allowed key is 0, without the output's bias.",
        after("output", lambda s, right: np.where(s["allowed"].any(axis=(1, 3))[..., None], right, 0.0)),
        stage="output",
        fix="Give such a row the weights 0, and project it as the others.",
    ),
    _empty(
        "empty-row-attends-first",
        "A row without an allowed key attends to key 0.",
        _in_empty_rows(lambda s: (np.arange(s.sizes.key_len) == 0).astype(np.float64)),
    ),
)


# The maximum and the sum --------------------------------------------------------------------------


def _shifted_by(highest: Callable[[State], NDArray | float]) -> Steps:
    """exp(score - highest(state)) / sum, 0 in rows without a key."""

    def weights(state: State) -> NDArray:
        exponentials = np.exp(open_scores(state) - highest(state))
        return exponentials / np.where(has_key(state), exponentials.sum(axis=-1, keepdims=True), 1.0)

    return _allowed_weights(weights)


def _plus(number: float) -> Steps:
    """Stable exponentials, divided by their sum plus a number."""

    def weights(state: State) -> NDArray:
        scores = open_scores(state)
        exponentials = np.exp(scores - np.where(has_key(state), highest_of(scores), 0.0))
        return exponentials / (exponentials.sum(axis=-1, keepdims=True) + number)

    return _allowed_weights(weights)


_maximum = Table("weights", "Subtract from each row its own maximum, that of the keys that count.")
_row = Table("weights", "Divide the exponentials by their own sum, and nothing else.")

NORMALISATION = (
    _maximum(
        "maximum-of-tensor",
        "The maximum is taken over the whole array: rows far below it become 0 / 0.",
        _shifted_by(lambda s: open_scores(s).max(initial=-np.inf)),
        seen_in="deeplearning4j/deeplearning4j-examples#730",
    ),
    _maximum("maximum-missing", "No maximum is subtracted: the exponential overflows.", _shifted_by(lambda s: 0.0)),
    _maximum(
        "maximum-clamped",
        "The maximum is at least 0: rows of very negative scores underflow.",
        _shifted_by(lambda s: open_scores(s).max(axis=-1, keepdims=True, initial=0.0)),
    ),
    _maximum(
        "maximum-of-excluded",
        "The maximum covers excluded scores: a large one makes the row underflow.",
        _shifted_by(lambda s: highest_of(s["scores"])),
    ),
    _row("denominator-plus-one", "1 is added to the sum of exponentials.", _plus(1.0)),
    _row("denominator-epsilon", "1e-6 is added to the sum of exponentials.", _plus(1e-6)),
    _row(
        "softmax-base-two",
        "Powers of 2 stand where powers of e belong: log2(e) is missing.",
        {"weights": lambda s: softmax(s["scores"] * np.log(2.0), s["allowed"])},
        fix="Use exp, or exp2 of scores times log2(e).",
    ),
    _row(
        "softmax-twice",
        "The softmax is applied twice.",
        after("weights", lambda s, right: softmax(right, s["allowed"])),
        fix="Apply the softmax once.",
    ),
    _row(
        "softmax-of-clamped",
        "Scores are clamped to [-50, 50] before the exponential.",
        {"weights": lambda s: softmax(np.clip(s["scores"], -50.0, 50.0), s["allowed"])},
        fix="Subtract the row's maximum; do not clamp.",
    ),
    _row(
        "softmax-missing",
        "Scores are used as weights, without a softmax.",
        _allowed_weights(lambda s: s["scores"]),
        fix="Apply the softmax to the scores.",
    ),
    _row(
        "softmax-log",
        "The logarithm of the softmax is used.",
        after("weights", lambda s, right: np.where(s["allowed"], np.log(right), 0.0)),
        fix="Use softmax, not log_softmax.",
    ),
    _row(
        "softmax-sigmoid",
        "A sigmoid stands where the softmax belongs.",
        _allowed_weights(lambda s: 1.0 / (1.0 + np.exp(-s["scores"]))),
        fix="Normalise over the keys with a softmax.",
    ),
    _row(
        "nan-hidden",
        "NaN weights are replaced by 0.",
        after("weights", lambda s, right: np.nan_to_num(right)),
        fix="Let NaN through; guard rows without a key by the mask, not by their value.",
    ),
)

BUGS = (*AXIS, *EXCLUSION, *EMPTY_ROWS, *NORMALISATION)
