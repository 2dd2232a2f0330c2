"""Dropout done wrong."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Steps, Table, after
from conformance.zoo.forward.scores import transposed
from mha_core.reference import forward
from mha_core.reference.forward import dropout_factor
from mha_core.reference.state import State


def _in_training(state: State) -> bool:
    return state.inputs.dropout_keep is not None


def _kept(change: Callable[[NDArray, NDArray, float], NDArray]) -> Steps:
    """`change(weights, keep-mask, p)` in place of weights * keep / (1 - p)."""

    def kept_weights(state: State, right: NDArray) -> NDArray:
        keep = state.inputs.dropout_keep
        return right if keep is None else change(state["weights"], keep, state.config.dropout)

    return after("kept_weights", kept_weights)


def _evaluation(factor: Callable[[State], NDArray | float]) -> Steps:
    """`factor(state)` on the weights where no keep-mask is given."""
    return after("kept_weights", lambda s, right: s["weights"] * factor(s), lambda s: not _in_training(s))


def _drawn(state: State) -> NDArray:
    """A keep-mask of its own, the same one each time."""
    p = state.config.dropout
    keep = np.random.default_rng(0).random(state["weights"].shape) >= p
    return keep / (1.0 - p) if p < 1.0 else keep * 0.0


def _renormalised(weights: NDArray, keep: NDArray, p: float) -> NDArray:
    kept = weights * keep
    total = kept.sum(axis=-1, keepdims=True)
    return kept / np.where(total == 0.0, 1.0, total)


def _right_d_scores(state: State) -> NDArray:
    """The right gradient, though the stage `weights` holds those after dropout."""
    weights = forward.weights(state)
    weighted = np.where(state["allowed"], weights * state["d_weights"], 0.0)
    return np.where(state["allowed"], weighted - weights * weighted.sum(axis=-1, keepdims=True), 0.0)


NO_DROPOUT: Steps = {"kept_weights": lambda s: s["weights"]}

OF_ITS_OWN = "Give each weight its own element of the keep-mask, which is (B, H, Lq, Lk)."
_row = Table("heads", "Multiply the weights by keep / (1 - p), element by element, in training only.")

BUGS = (
    _row("dropout-not-rescaled", "Kept weights are not rescaled by 1 / (1 - p).", _kept(lambda w, keep, p: w * keep)),
    _row("dropout-rescaled-by-p", "Kept weights are rescaled by 1 / p.", _kept(lambda w, keep, p: w * (keep / p))),
    _row(
        "dropout-multiplied",
        "Kept weights are multiplied by 1 - p instead of divided.",
        _kept(lambda w, keep, p: w * (keep * (1.0 - p))),
    ),
    _row(
        "dropout-rescaled-by-count",
        "Kept weights are rescaled by the share that was kept instead of 1 - p.",
        _kept(lambda w, keep, p: w * (keep / max(float(keep.mean()), 1e-300))),
    ),
    _row(
        "dropout-inverted",
        "The keep-mask is read as the weights to drop.",
        _kept(lambda w, keep, p: w * (~keep / (1.0 - p))),
    ),
    _row("dropout-ignored", "Dropout does nothing in training.", _kept(lambda w, keep, p: w)),
    _row(
        "dropout-shared-by-heads",
        "Every head drops what head 0 drops.",
        _kept(lambda w, keep, p: w * (keep[:, :1] / (1.0 - p))),
        fix=OF_ITS_OWN,
    ),
    _row(
        "dropout-shared-by-items",
        "Every batch item drops what item 0 drops.",
        _kept(lambda w, keep, p: w * (keep[:1] / (1.0 - p))),
        fix=OF_ITS_OWN,
    ),
    _row(
        "dropout-shared-by-queries",
        "Every query drops the keys that query 0 drops.",
        _kept(lambda w, keep, p: w * (keep[:, :, :1] / (1.0 - p))),
        fix=OF_ITS_OWN,
    ),
    _row(
        "dropout-transposed",
        "The keep-mask's rows and columns are exchanged.",
        _kept(lambda w, keep, p: w * (transposed(keep, w) / (1.0 - p))),
        fix="Read the keep-mask as (B, H, Lq, Lk), as the weights are.",
    ),
    _row("dropout-renormalised", "Kept weights are divided by their sum instead of 1 - p.", _kept(_renormalised)),
    _row(
        "dropout-on-scores",
        "Dropout acts on the scores, before the softmax.",
        after("scores", lambda s, right: right * dropout_factor(s)),
        NO_DROPOUT,
        stage="scores",
    ),
    _row(
        "dropout-as-exclusion",
        "Dropped keys are excluded from the softmax.",
        after("allowed", lambda s, right: right & s.inputs.dropout_keep, _in_training),
        NO_DROPOUT,
        stage="weights",
    ),
    _row(
        "dropout-in-returned-weights",
        "The returned weights are those after dropout.",
        after("weights", lambda s, right: right * dropout_factor(s)),
        NO_DROPOUT,
        {"d_scores": _right_d_scores},
        stage="weights",
        fix="Return the weights before dropout.",
    ),
    _row("dropout-in-evaluation", "Dropout is active outside training too.", _evaluation(_drawn)),
    _row(
        "dropout-scales-evaluation",
        "Attention weights are multiplied by 1 - p outside training, though training divides by it.",
        _evaluation(lambda s: 1.0 - s.config.dropout),
    ),
)
