"""Dropout done wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug
from conformance.zoo.forward.scores import transposed
from mha_core.reference import forward
from mha_core.reference.forward import dropout_factor
from mha_core.reference.state import State, Step

DROPOUT_FIX = "Multiply the weights by keep / (1 - p), element by element, in training only."


def _factor(factor: Callable[[State, NDArray], NDArray | float]) -> Mapping[str, Step]:
    """`factor(state, keep (B, H, Lq, Lk))` in place of keep / (1 - p), forward and backward."""

    def multiply(name: str) -> Step:
        def step(state: State) -> NDArray:
            keep = state.inputs.dropout_keep
            return state[name] * (1.0 if keep is None else factor(state, keep))

        return step

    return {"kept_weights": multiply("weights")}


def _outside_training(factor: Callable[[State], NDArray | float]) -> Mapping[str, Step]:
    """`factor(state)` on the weights where no keep-mask is given."""

    def kept_weights(state: State) -> NDArray:
        if state.inputs.dropout_keep is not None:
            return forward.kept_weights(state)
        return state["weights"] * factor(state)

    return {"kept_weights": kept_weights}


def _drawn(state: State) -> NDArray:
    """A keep-mask of its own, the same one each time."""
    p = state.config.dropout
    keep = np.random.default_rng(0).random(state["weights"].shape) >= p
    return keep / (1.0 - p) if p < 1.0 else keep * 0.0


def _renormalised(state: State) -> NDArray:
    if state.inputs.dropout_keep is None:
        return forward.kept_weights(state)
    kept = state["weights"] * state.inputs.dropout_keep
    total = kept.sum(axis=-1, keepdims=True)
    return kept / np.where(total == 0.0, 1.0, total)


def _on_scores(state: State) -> NDArray:
    return forward.scores(state) * dropout_factor(state)


def _on_scores_excluding(state: State) -> NDArray:
    """Dropped keys leave the softmax."""
    if state.inputs.dropout_keep is None:
        return forward.allowed(state)
    return forward.allowed(state) & state.inputs.dropout_keep


def _share_kept(state: State, keep: NDArray) -> NDArray:
    return keep / max(float(keep.mean()), 1e-300)


def _bug(id: str, sentence: str, forward: Mapping[str, Step], stage: str = "heads") -> Bug:
    return Bug(id, sentence, stage, DROPOUT_FIX, forward=forward)


def _right_d_scores(state: State) -> NDArray:
    """The right gradient, though the stage `weights` holds those after dropout."""
    weights = forward.weights(state)
    weighted = np.where(state["allowed"], weights * state["d_weights"], 0.0)
    return np.where(state["allowed"], weighted - weights * weighted.sum(axis=-1, keepdims=True), 0.0)


BUGS = (
    _bug("dropout-not-rescaled", "Kept weights are not rescaled by 1 / (1 - p).", _factor(lambda s, keep: keep)),
    _bug(
        "dropout-rescaled-by-p", "Kept weights are rescaled by 1 / p.", _factor(lambda s, keep: keep / s.config.dropout)
    ),
    _bug(
        "dropout-multiplied",
        "Kept weights are multiplied by 1 - p instead of divided.",
        _factor(lambda s, keep: keep * (1.0 - s.config.dropout)),
    ),
    _bug(
        "dropout-rescaled-by-count",
        "Kept weights are rescaled by the share that was kept instead of 1 - p.",
        _factor(_share_kept),
    ),
    _bug(
        "dropout-inverted",
        "The keep-mask is read as the weights to drop.",
        _factor(lambda s, keep: ~keep / (1.0 - s.config.dropout)),
    ),
    _bug("dropout-ignored", "Dropout does nothing in training.", _factor(lambda s, keep: 1.0)),
    _bug(
        "dropout-shared-by-heads",
        "Every head drops what head 0 drops.",
        _factor(lambda s, keep: keep[:, :1] / (1.0 - s.config.dropout)),
    ),
    _bug(
        "dropout-shared-by-items",
        "Every batch item drops what item 0 drops.",
        _factor(lambda s, keep: keep[:1] / (1.0 - s.config.dropout)),
    ),
    _bug(
        "dropout-shared-by-queries",
        "Every query drops the keys that query 0 drops.",
        _factor(lambda s, keep: keep[:, :, :1] / (1.0 - s.config.dropout)),
    ),
    _bug(
        "dropout-transposed",
        "The keep-mask's rows and columns are exchanged.",
        _factor(lambda s, keep: transposed(keep, s["scores"]) / (1.0 - s.config.dropout)),
    ),
    _bug(
        "dropout-renormalised",
        "Kept weights are divided by their sum instead of 1 - p.",
        {"kept_weights": _renormalised},
    ),
    _bug(
        "dropout-on-scores",
        "Dropout acts on the scores, before the softmax.",
        {"scores": _on_scores, "kept_weights": lambda s: s["weights"]},
        "scores",
    ),
    _bug(
        "dropout-as-exclusion",
        "Dropped keys are excluded from the softmax.",
        {"allowed": _on_scores_excluding, "kept_weights": lambda s: s["weights"]},
        "weights",
    ),
    Bug(
        "dropout-in-returned-weights",
        "The returned weights are those after dropout.",
        "weights",
        "Return the weights before dropout.",
        forward={"weights": lambda s: forward.weights(s) * dropout_factor(s), "kept_weights": lambda s: s["weights"]},
        backward={"d_scores": _right_d_scores},
    ),
    _bug("dropout-in-evaluation", "Dropout is active outside training too.", _outside_training(_drawn)),
    _bug(
        "dropout-scales-evaluation",
        "Weights are multiplied by 1 - p outside training, though training divides by it.",
        _outside_training(lambda s: 1.0 - s.config.dropout),
    ),
)
