"""Bugs of backward passes in blocks: gradients not added up over the blocks, weights recomputed differently."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.backward.attention import d_values_by
from conformance.zoo.blocked.blocks import blocks_of_queries, exponentials, finite
from conformance.zoo.bug import GRADIENTS, Steps, Table
from conformance.zoo.forward.softmax import highest_of, open_scores
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import dropout_factor
from mha_core.reference.state import State


def _of_last_block(name: str, *read: str) -> Steps:
    """The right step on the queries of the last block alone, as if each block overwrote the gradients before it."""

    def last(state: State) -> Any:
        if not state.sizes.query_len:
            return BACKWARD[name](state)
        start = blocks_of_queries(state)[-1].start
        arrays = dict(state.arrays)
        for other in read:
            if arrays.get(other) is not None:
                arrays[other] = arrays[other].copy()
                arrays[other][:, :, :start] = 0.0
        return BACKWARD[name](replace(state, arrays=arrays))

    return {name: last}


def _row_sum(state: State) -> NDArray:
    """rowsum(P * dP), taken of the heads, which are those of the forward direction."""
    return (state["d_heads"] * state["heads"]).sum(axis=-1, keepdims=True)


def _d_scores(state: State, weights: NDArray) -> NDArray:
    return np.where(weights == 0.0, 0.0, weights * (state["d_weights"] - _row_sum(state)))


def _recomputed(weights: Callable[[State], NDArray]) -> Steps:
    """Both uses of the weights in the backward direction with `weights(state)`, before dropout."""
    return {
        "d_values": lambda s: d_values_by(s, weights(s) * dropout_factor(s)),
        "d_scores": lambda s: _d_scores(s, weights(s)),
    }


def _logsumexp(state: State) -> NDArray:
    """(B, H, Lq, 1), infinite in a row without a key."""
    total = exponentials(state).sum(axis=-1, keepdims=True)
    highest = finite(highest_of(open_scores(state)))
    return np.where(total > 0.0, highest + np.log(np.where(total > 0.0, total, 1.0)), np.inf)


def _other_factor(state: State) -> NDArray | float:
    """The dropout factor (B, H, Lq, Lk) of another keep-mask, as if it were drawn again; 1 without dropout."""
    keep = state.inputs.dropout_keep
    return 1.0 if keep is None else np.roll(keep, 1, axis=-1) / (1.0 - state.config.dropout)


_add_up = Table(
    GRADIENTS, "Add up over all blocks of queries what each gives to the keys, the values and a shared bias."
)
_recompute = Table(
    GRADIENTS,
    "Recompute the very weights of the forward direction: exp(score - logsumexp), mask, bias and dropout alike.",
)

BUGS = (
    _add_up(
        "gradient-of-keys-from-last-block",
        "Each block of queries overwrites the gradient of the keys instead of adding to it.",
        _of_last_block("d_keys", "d_similarity", "d_additive_hidden"),
    ),
    _add_up(
        "gradient-of-values-from-last-block",
        "Each block of queries overwrites the gradient of the values instead of adding to it.",
        _of_last_block("d_values", "kept_weights"),
    ),
    _add_up(
        "gradient-of-bias-from-last-block",
        "Each block of queries overwrites the gradient of the bias instead of adding to it.",
        _of_last_block("d_bias", "d_scores"),
        seen_in="HKUSTDial/flash-sparse-attention#194",
    ),
    _recompute(
        "gradient-recomputed-unnormalised",
        "The recomputed weights are exp(score - maximum), not divided by their sum.",
        _recomputed(exponentials),
    ),
    _recompute(
        "gradient-recomputed-without-mask",
        "The recomputed weights do not exclude what the mask excludes.",
        _recomputed(lambda s: np.exp(s["scores"] - _logsumexp(s))),
        seen_in="hao-ai-lab/FastVideo#925",
    ),
    _recompute(
        "gradient-recomputed-without-bias",
        "The recomputed scores leave out the bias.",
        _recomputed(lambda s: np.where(s["allowed"], np.exp(s["capped"] - _logsumexp(s)), 0.0)),
    ),
    _recompute(
        "gradient-through-dropped-weights",
        "The softmax's gradient multiplies by the weights after dropout instead of before.",
        {"d_scores": lambda s: _d_scores(s, s["kept_weights"])},
        fix="Keep both: weights before dropout for the scores' gradient, after it for the values'.",
        seen_in="aws-neuron/nki-samples#81",
    ),
    _recompute(
        "gradient-dropout-drawn-again",
        "The recomputation drops other weights than the forward direction did.",
        {
            "d_weights": lambda s: s["d_kept_weights"] * _other_factor(s),
            "d_values": lambda s: d_values_by(s, s["weights"] * _other_factor(s)),
        },
        seen_in="openai/guided-diffusion#167",
    ),
)
