"""Right forward, wrong backward, inside the attention: softmax, scores, groups, dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import GRADIENTS, Bug, DoesNotApply
from mha_core.heads import sum_kv_groups
from mha_core.reference import backward
from mha_core.reference.forward import dropout_factor
from mha_core.reference.state import State, Step

SOFTMAX_FIX = "dS = P * (dP - rowsum(P * dP)), over the allowed keys."
SCALE_FIX = "d_queries = dS @ keys * scale and d_keys = dS^T @ queries * scale."
GROUP_FIX = "Add up the gradients of all query heads that read a key/value head."
DETACH_FIX = "Let the gradient through: no detach or stop_gradient on this path."


def _bug(id: str, sentence: str, fix: str, backward: Mapping[str, Step], seen_in: str = "") -> Bug:
    return Bug(id, sentence, GRADIENTS, fix, backward=backward, seen_in=seen_in)


def _times(name: str, factor: Callable[[State], Any]) -> Step:
    """The right step's array times a factor."""
    right = backward.BACKWARD[name]
    return lambda state: right(state) * factor(state)


# The softmax --------------------------------------------------------------------------------------


def _where_allowed(state: State, array: NDArray) -> NDArray:
    return np.where(state["allowed"], array, 0.0)


def weighted(state: State, gradient: str = "d_weights") -> NDArray:
    """P * dP, (B, H, Lq, Lk); 0 where a key is excluded, even beside a NaN."""
    return _where_allowed(state, state["weights"] * state[gradient])


def _row_sum_over_queries(state: State) -> NDArray:
    total = weighted(state).sum(axis=-2, keepdims=True)
    return _where_allowed(state, weighted(state) - state["weights"] * total)


def _row_sum_before_dropout(state: State) -> NDArray:
    total = weighted(state, "d_kept_weights").sum(axis=-1, keepdims=True)
    return _where_allowed(state, weighted(state) - state["weights"] * total)


def _without_weights_factor(state: State) -> NDArray:
    return _where_allowed(state, state["d_weights"] - weighted(state).sum(axis=-1, keepdims=True))


def _nan_in_empty_rows(state: State) -> NDArray:
    return np.where(state["allowed"].any(axis=-1, keepdims=True), backward.d_scores(state), np.nan)


def _nan_where_excluded(state: State) -> NDArray:
    """The right gradient, NaN at excluded keys: where(allowed, f(weight), 0) gives that by 0 * infinity."""
    return np.where(state["allowed"], backward.d_scores(state), np.nan)


def _detached_maximum(state: State) -> NDArray:
    """The gradient (B, H, Lq, Lk) of exp(s - m) / sum with m held constant, computed operation by operation."""
    has_key = state["allowed"].any(axis=-1, keepdims=True)
    scores = np.where(state["allowed"], state["scores"], -np.inf)
    exponentials = np.exp(scores - np.where(has_key, scores.max(axis=-1, keepdims=True, initial=-np.inf), 0.0))
    total = np.where(has_key, exponentials.sum(axis=-1, keepdims=True), 1.0)
    d_weights = _where_allowed(state, state["d_weights"])
    through_total = (exponentials * d_weights).sum(axis=-1, keepdims=True) / total**2
    return _where_allowed(state, exponentials * (d_weights / total - through_total))


SOFTMAX = (
    _bug(
        "gradient-without-row-sum",
        "The softmax's denominator is treated as a constant: the row sum is missing.",
        SOFTMAX_FIX,
        {"d_scores": weighted},
    ),
    _bug(
        "gradient-row-sum-over-queries",
        "The softmax's gradient sums over queries instead of keys.",
        SOFTMAX_FIX,
        {"d_scores": _row_sum_over_queries},
    ),
    _bug(
        "gradient-row-sum-without-dropout",
        "The softmax's row sum is taken of the gradient before dropout's factor.",
        SOFTMAX_FIX,
        {"d_scores": _row_sum_before_dropout},
    ),
    _bug(
        "gradient-without-weights",
        "The softmax's gradient is not multiplied by the weights.",
        SOFTMAX_FIX,
        {"d_scores": _without_weights_factor},
    ),
    _bug(
        "gradient-nan-in-empty-rows",
        "A row without a key was NaN and repaired after the softmax: its gradient is still NaN.",
        "Keep such a row out of the softmax: choose finite scores for it before, not zeros after.",
        {"d_scores": _nan_in_empty_rows},
        "pytorch/pytorch#41508",
    ),
    _bug(
        "gradient-nan-where-excluded",
        "An excluded score's gradient is 0 * infinity, NaN.",
        "Choose a finite input before the function that blows up, not another result after it.",
        {"d_scores": _nan_where_excluded},
    ),
    Bug(
        "gradient-maximum-detached",
        "The maximum that is subtracted from the scores is treated as a constant.",
        GRADIENTS,
        "Nothing: this is right.",
        backward={"d_scores": _detached_maximum},
        equivalent=(
            "exp(s_j - m) / sum_k exp(s_k - m) does not depend on m, so its derivative with respect to m is 0 "
            "and the way through m adds nothing, whatever m depends on."
        ),
    ),
)


# The scale and the score function -----------------------------------------------------------------


def _other_scale(factor: Callable[[float], float]) -> Mapping[str, Step]:
    """`factor(scale)` on top of the scale; the additive score has none."""

    def on(state: State) -> float:
        return factor(state.config.softmax_scale)

    return {"d_queries": _times("d_queries", on), "d_keys": _times("d_keys", on)}


def _keys_for_queries(state: State) -> NDArray:
    if state.sizes.query_len != state.sizes.key_len:
        raise DoesNotApply("keys can stand in for queries unnoticed only where Lq = Lk")
    if state.config.score == "additive":
        return backward.d_keys(state)
    per_head = state["d_similarity"].swapaxes(-1, -2) @ state.heads_of("keys") * state.config.softmax_scale
    return sum_kv_groups(per_head, state.config.num_kv_heads)


def _weights_untransposed(state: State) -> NDArray:
    if state.sizes.query_len != state.sizes.key_len:
        raise DoesNotApply("weights can stay untransposed unnoticed only where Lq = Lk")
    return sum_kv_groups(state["kept_weights"] @ state["d_heads"], state.config.num_kv_heads)


def _without_slope(state: State) -> NDArray | None:
    if state.config.score != "additive":
        return None
    vector = state.parameters["score.vector"]
    return state["d_similarity"][..., None] * vector


def _slope_of_output(state: State) -> NDArray | None:
    """`d_additive_hidden` with the slope 1 - tanh instead of 1 - tanh^2."""
    if state.config.score != "additive":
        return None
    return state["d_similarity"][..., None] * state.parameters["score.vector"] * (1.0 - state["additive_hidden"])


def _score_parameters(change: Callable[[State, dict[str, NDArray]], dict[str, NDArray]]) -> Mapping[str, Step]:
    def step(state: State) -> dict[str, NDArray]:
        right = backward.d_score_parameters(state)
        return {**right, **change(state, right)} if right else right

    return {"d_score_parameters": step}


SCORES = (
    _bug(
        "gradient-without-scale",
        "The scale is missing in the gradients of queries and keys.",
        SCALE_FIX,
        _other_scale(lambda scale: 1.0 / scale),
    ),
    _bug(
        "gradient-scaled-twice",
        "The scale is applied twice in the gradients of queries and keys.",
        SCALE_FIX,
        _other_scale(lambda scale: scale),
    ),
    _bug(
        "gradient-of-keys-without-scale",
        "The scale is missing in the gradient of the keys.",
        SCALE_FIX,
        {"d_keys": _times("d_keys", lambda s: 1.0 / s.config.softmax_scale)},
    ),
    _bug(
        "gradient-of-keys-from-keys",
        "The keys' gradient multiplies by the keys instead of the queries.",
        SCALE_FIX,
        {"d_keys": _keys_for_queries},
    ),
    _bug(
        "gradient-of-values-untransposed",
        "The values' gradient multiplies by the weights untransposed.",
        "d_values = weights^T @ d_heads.",
        {"d_values": _weights_untransposed},
    ),
    _bug(
        "gradient-without-tanh-slope",
        "The additive score's gradient leaves out the tanh's slope.",
        "Multiply by 1 - tanh^2.",
        {"d_additive_hidden": _without_slope},
    ),
    _bug(
        "gradient-wrong-tanh-slope",
        "The additive score's gradient takes 1 - tanh as the tanh's slope.",
        "Multiply by 1 - tanh^2.",
        {"d_additive_hidden": _slope_of_output},
    ),
    _bug(
        "gradient-of-score-matrices-exchanged",
        "The gradients of the additive score's two matrices are exchanged.",
        "Give each matrix its own gradient.",
        _score_parameters(
            lambda s, right: {
                "score.query.weight": right["score.key.weight"],
                "score.key.weight": right["score.query.weight"],
            }
        ),
    ),
    _bug(
        "gradient-of-score-vector-missing",
        "The additive score's vector gets no gradient.",
        DETACH_FIX,
        _score_parameters(lambda s, right: {"score.vector": 0.0 * right["score.vector"]}),
    ),
)


# Grouped heads ------------------------------------------------------------------------------------


def _grouped(reduce: Callable[[NDArray], NDArray]) -> Mapping[str, Step]:
    """`reduce(gradients (B, G, H // G, Lk, d))` in place of the sum over axis 2, for keys and values."""

    def by_group(state: State, per_head: NDArray) -> NDArray:
        batch, _, length, head_dim = per_head.shape
        groups = state.config.num_kv_heads
        return reduce(per_head.reshape(batch, groups, state.config.num_heads // groups, length, head_dim))

    def d_keys(state: State) -> NDArray:
        if state.config.score == "additive":
            return by_group(state, state["d_additive_hidden"].sum(axis=2) @ state.parameters["score.key.weight"])
        return by_group(state, state["d_similarity"].swapaxes(-1, -2) @ state["queries"] * state.config.softmax_scale)

    def d_values(state: State) -> NDArray:
        return by_group(state, state["kept_weights"].swapaxes(-1, -2) @ state["d_heads"])

    return {"d_keys": d_keys, "d_values": d_values}


GROUPS = (
    _bug(
        "gradient-of-group-averaged",
        "The gradient of a key/value head is the mean over its query heads.",
        GROUP_FIX,
        _grouped(lambda g: g.mean(axis=2)),
    ),
    _bug(
        "gradient-of-group-first",
        "A key/value head gets the gradient of its first query head alone.",
        GROUP_FIX,
        _grouped(lambda g: g[:, :, 0]),
    ),
    _bug(
        "gradient-of-group-last",
        "A key/value head gets the gradient of its last query head alone.",
        GROUP_FIX,
        _grouped(lambda g: g[:, :, -1]),
    ),
)

# Dropout ------------------------------------------------------------------------------------------


def _values_before_dropout(state: State) -> NDArray:
    return sum_kv_groups(state["weights"].swapaxes(-1, -2) @ state["d_heads"], state.config.num_kv_heads)


DROPOUT = (
    _bug(
        "gradient-of-values-without-dropout",
        "The values' gradient uses the weights before dropout.",
        "Use the weights after dropout.",
        {"d_values": _values_before_dropout},
    ),
    _bug(
        "gradient-of-weights-without-dropout",
        "The weights' gradient leaves out dropout's factor.",
        "Multiply by keep / (1 - p).",
        {"d_weights": lambda s: s["d_kept_weights"]},
    ),
    _bug(
        "gradient-dropout-twice",
        "Dropout's factor is applied twice in the weights' gradient.",
        "Multiply by keep / (1 - p) once.",
        {"d_weights": lambda s: s["d_kept_weights"] * dropout_factor(s) ** 2},
    ),
)

BUGS = (*SOFTMAX, *SCORES, *GROUPS, *DROPOUT)
