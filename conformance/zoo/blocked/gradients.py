"""Bugs of backward passes in blocks: gradients not added up over the blocks, weights recomputed differently."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.blocked.keys import finite, open_scores
from conformance.zoo.blocked.queries import blocks_of_queries
from conformance.zoo.bug import GRADIENTS, Bug
from mha_core.heads import sum_kv_groups
from mha_core.reference import backward
from mha_core.reference.forward import dropout_factor
from mha_core.reference.state import State, Step

ACCUMULATE_FIX = "Add up over all blocks of queries what each gives to the keys, the values and a shared bias."
RECOMPUTE_FIX = (
    "Recompute the very weights of the forward direction: exp(score - logsumexp), mask, bias and dropout alike."
)


def _backward_bug(id: str, sentence: str, fix: str, backward: Mapping[str, Step], seen_in: str = "") -> Bug:
    return Bug(id, sentence, GRADIENTS, fix, backward=backward, seen_in=seen_in)


def _of_last_block(step: Step, *names: str) -> Step:
    """The right step on the queries of the last block alone, as if each block overwrote the gradients before it."""

    def last(state: State) -> NDArray | None:
        if not state.sizes.query_len:
            return step(state)
        start = blocks_of_queries(state)[-1].start
        arrays = dict(state.arrays)
        for name in names:
            if arrays.get(name) is not None:
                arrays[name] = arrays[name].copy()
                arrays[name][:, :, :start] = 0.0
        return step(replace(state, arrays=arrays))

    return last


def _recomputed(weights: Callable[[State], NDArray]) -> Mapping[str, Step]:
    """Both uses of the weights in the backward direction with `weights(state)`, before dropout."""

    def d_values(state: State) -> NDArray:
        per_head = (weights(state) * dropout_factor(state)).swapaxes(-1, -2) @ state["d_heads"]
        return sum_kv_groups(per_head, state.config.num_kv_heads)

    def d_scores(state: State) -> NDArray:
        # D is taken of the heads, which are those of the forward direction.
        row_sum = (state["d_heads"] * state["heads"]).sum(axis=-1, keepdims=True)
        again = weights(state)
        return np.where(again == 0.0, 0.0, again * (state["d_weights"] - row_sum))

    return {"d_values": d_values, "d_scores": d_scores}


def _logsumexp(state: State) -> NDArray:
    """(B, H, Lq, 1), infinite in a row without a key."""
    scores = open_scores(state)
    highest = finite(scores.max(axis=-1, keepdims=True, initial=-np.inf))
    total = np.exp(scores - highest).sum(axis=-1, keepdims=True)
    return np.where(total > 0.0, highest + np.log(np.where(total > 0.0, total, 1.0)), np.inf)


def _unnormalised(state: State) -> NDArray:
    scores = open_scores(state)
    return np.exp(scores - finite(scores.max(axis=-1, keepdims=True, initial=-np.inf)))


def _without_mask(state: State) -> NDArray:
    return np.exp(state["scores"] - _logsumexp(state))


def _without_bias(state: State) -> NDArray:
    return np.where(state["allowed"], np.exp(state["capped"] - _logsumexp(state)), 0.0)


def _through_dropped(state: State) -> NDArray:
    row_sum = (state["d_heads"] * state["heads"]).sum(axis=-1, keepdims=True)
    kept = state["kept_weights"]
    return np.where(kept == 0.0, 0.0, kept * (state["d_weights"] - row_sum))


def _other_factor(state: State) -> NDArray | float:
    """The dropout factor (B, H, Lq, Lk) of another keep-mask, as if it were drawn again; 1 without dropout."""
    keep = state.inputs.dropout_keep
    return 1.0 if keep is None else np.roll(keep, 1, axis=-1) / (1.0 - state.config.dropout)


def _values_by_other_factor(state: State) -> NDArray:
    per_head = (state["weights"] * _other_factor(state)).swapaxes(-1, -2) @ state["d_heads"]
    return sum_kv_groups(per_head, state.config.num_kv_heads)


BUGS = (
    _backward_bug(
        "gradient-of-keys-from-last-block",
        "Each block of queries overwrites the gradient of the keys instead of adding to it.",
        ACCUMULATE_FIX,
        {"d_keys": _of_last_block(backward.d_keys, "d_similarity", "d_additive_hidden")},
    ),
    _backward_bug(
        "gradient-of-values-from-last-block",
        "Each block of queries overwrites the gradient of the values instead of adding to it.",
        ACCUMULATE_FIX,
        {"d_values": _of_last_block(backward.d_values, "kept_weights")},
    ),
    _backward_bug(
        "gradient-of-bias-from-last-block",
        "Each block of queries overwrites the gradient of the bias instead of adding to it.",
        ACCUMULATE_FIX,
        {"d_bias": _of_last_block(backward.d_bias, "d_scores")},
        "HKUSTDial/flash-sparse-attention#194",
    ),
    _backward_bug(
        "gradient-recomputed-unnormalised",
        "The recomputed weights are exp(score - maximum), not divided by their sum.",
        RECOMPUTE_FIX,
        _recomputed(_unnormalised),
    ),
    _backward_bug(
        "gradient-recomputed-without-mask",
        "The recomputed weights do not exclude what the mask excludes.",
        RECOMPUTE_FIX,
        _recomputed(_without_mask),
        "hao-ai-lab/FastVideo#925",
    ),
    _backward_bug(
        "gradient-recomputed-without-bias",
        "The recomputed scores leave out the bias.",
        RECOMPUTE_FIX,
        _recomputed(_without_bias),
    ),
    _backward_bug(
        "gradient-through-dropped-weights",
        "The softmax's gradient multiplies by the weights after dropout instead of before.",
        "Keep both: weights before dropout for the scores' gradient, after it for the values'.",
        {"d_scores": _through_dropped},
        "aws-neuron/nki-samples#81",
    ),
    _backward_bug(
        "gradient-dropout-drawn-again",
        "The recomputation drops other weights than the forward direction did.",
        RECOMPUTE_FIX,
        {"d_weights": lambda s: s["d_kept_weights"] * _other_factor(s), "d_values": _values_by_other_factor},
        "openai/guided-diffusion#167",
    ),
)
