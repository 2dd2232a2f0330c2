"""Right forward, wrong backward, inside the attention: softmax, scores, groups, dropout."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import GRADIENTS, Steps, Table, after, entries, require, times
from conformance.zoo.forward.scores import is_additive, is_product
from conformance.zoo.forward.softmax import has_key, highest_of, open_scores
from mha_core.heads import sum_kv_groups
from mha_core.reference import backward
from mha_core.reference.forward import dropout_factor
from mha_core.reference.state import State

SOFTMAX_FIX = "dS = P * (dP - rowsum(P * dP)), over the allowed keys."
DETACH_FIX = "Let the gradient through: no detach or stop_gradient on this path."

# The softmax --------------------------------------------------------------------------------------


def _where_allowed(state: State, array: NDArray) -> NDArray:
    return np.where(state["allowed"], array, 0.0)


def weighted(state: State, gradient: str = "d_weights") -> NDArray:
    """Return attention weights * state[gradient] (B, H, Lq, Lk), with 0 (and never NaN) for excluded keys."""
    return _where_allowed(state, state["weights"] * state[gradient])


def d_values_by(state: State, kept_weights: NDArray) -> NDArray:
    """Return the values' gradient (B, G, Lk, dv), computed with `kept_weights` (B, H, Lq, Lk) as the weights."""
    return sum_kv_groups(kept_weights.swapaxes(-1, -2) @ state["d_heads"], state.config.num_kv_heads)


def _less(row_sum: Callable[[State], NDArray]) -> Steps:
    """P * dP - P * `row_sum(state)`."""
    return {"d_scores": lambda s: _where_allowed(s, weighted(s) - s["weights"] * row_sum(s))}


def _detached_maximum(state: State) -> NDArray:
    """The gradient (B, H, Lq, Lk) of exp(s - m) / sum with m held constant, computed operation by operation."""
    scores = open_scores(state)
    exponentials = np.exp(scores - np.where(has_key(state), highest_of(scores), 0.0))
    total = np.where(has_key(state), exponentials.sum(axis=-1, keepdims=True), 1.0)
    d_weights = _where_allowed(state, state["d_weights"])
    through_total = (exponentials * d_weights).sum(axis=-1, keepdims=True) / total**2
    return _where_allowed(state, exponentials * (d_weights / total - through_total))


_row = Table(GRADIENTS, SOFTMAX_FIX)

SOFTMAX = (
    _row(
        "gradient-without-row-sum",
        "The softmax's denominator is treated as a constant: the row sum is missing.",
        {"d_scores": weighted},
    ),
    _row(
        "gradient-row-sum-over-queries",
        "The softmax's gradient sums over queries instead of keys.",
        _less(lambda s: weighted(s).sum(axis=-2, keepdims=True)),
    ),
    _row(
        "gradient-row-sum-without-dropout",
        "The softmax's row sum is taken of the gradient before dropout's factor.",
        _less(lambda s: weighted(s, "d_kept_weights").sum(axis=-1, keepdims=True)),
    ),
    _row(
        "gradient-without-weights",
        "The softmax's gradient is not multiplied by the weights.",
        {"d_scores": lambda s: _where_allowed(s, s["d_weights"] - weighted(s).sum(axis=-1, keepdims=True))},
    ),
    _row(
        "gradient-nan-in-empty-rows",
        "A row without a key was NaN and repaired after the softmax: its gradient is still NaN.",
        after("d_scores", lambda s, right: np.where(has_key(s), right, np.nan)),
        fix="Keep such a row out of the softmax: choose finite scores for it before, not zeros after.",
        seen_in="pytorch/pytorch#41508",
    ),
    _row(  # where(allowed, f(weight), 0) gives NaN at excluded keys by 0 * infinity
        "gradient-nan-where-excluded",
        "An excluded score's gradient is 0 * infinity, NaN.",
        after("d_scores", lambda s, right: np.where(s["allowed"], right, np.nan)),
        fix="Choose a finite input before the function that blows up, not another result after it.",
    ),
    _row(
        "gradient-maximum-detached",
        "The maximum that is subtracted from the scores is treated as a constant.",
        {"d_scores": _detached_maximum},
        fix="Nothing: this is right.",
        equivalent=(
            "exp(s_j - m) / sum_k exp(s_k - m) does not depend on m, so its derivative with respect to m is 0 "
            "and the way through m adds nothing, whatever m depends on."
        ),
    ),
)


# The scale and the score function -----------------------------------------------------------------


def _keys_for_queries(state: State) -> NDArray:
    possible = state.sizes.query_len == state.sizes.key_len
    require(possible, "keys can stand in for queries unnoticed only where Lq = Lk")
    if is_additive(state):
        return backward.d_keys(state)
    per_head = state["d_similarity"].swapaxes(-1, -2) @ state.heads_of("keys") * state.config.softmax_scale
    return sum_kv_groups(per_head, state.config.num_kv_heads)


def _weights_untransposed(state: State) -> NDArray:
    possible = state.sizes.query_len == state.sizes.key_len
    require(possible, "weights can stay untransposed unnoticed only where Lq = Lk")
    return sum_kv_groups(state["kept_weights"] @ state["d_heads"], state.config.num_kv_heads)


def _hidden(slope: Callable[[NDArray], NDArray | float]) -> Steps:
    """`slope(tanh)` in place of the tanh's slope, 1 - tanh^2."""

    def through(state: State, right: NDArray) -> NDArray:
        gradient: NDArray = state["d_similarity"][..., None] * state.parameters["score.vector"]
        return gradient * slope(state["additive_hidden"])

    return after("d_additive_hidden", through)


_row = Table(GRADIENTS, "d_queries = dS @ keys * scale and d_keys = dS^T @ queries * scale.")
_slope = Table(GRADIENTS, "Multiply by 1 - tanh^2.")

SCORES = (
    _row(
        "gradient-without-scale",
        "The scale is missing in the gradients of queries and keys.",
        *(times(step, lambda s: 1.0 / s.config.softmax_scale) for step in ("d_queries", "d_keys")),
    ),
    _row(
        "gradient-scaled-twice",
        "The scale is applied twice in the gradients of queries and keys.",
        *(times(step, lambda s: s.config.softmax_scale) for step in ("d_queries", "d_keys")),
    ),
    _row(
        "gradient-of-keys-without-scale",
        "The scale is missing in the gradient of the keys.",
        times("d_keys", lambda s: 1.0 / s.config.softmax_scale),
    ),
    _row(
        "gradient-of-keys-from-keys",
        "The keys' gradient multiplies by the keys instead of the queries.",
        {"d_keys": _keys_for_queries},
    ),
    _row(
        "gradient-of-values-untransposed",
        "The values' gradient multiplies by the weights untransposed.",
        {"d_values": _weights_untransposed},
        fix="d_values = weights^T @ d_heads.",
    ),
    _slope(
        "gradient-without-tanh-slope",
        "The additive score's gradient leaves out the tanh's slope.",
        _hidden(lambda tanh: 1.0),
    ),
    _slope(
        "gradient-wrong-tanh-slope",
        "The additive score's gradient takes 1 - tanh as the tanh's slope.",
        _hidden(lambda tanh: 1.0 - tanh),
    ),
    _row(
        "gradient-of-score-matrices-exchanged",
        "The gradients of the additive score's two matrices are exchanged.",
        entries(
            "d_score_parameters",
            lambda s, right: {
                "score.query.weight": right["score.key.weight"],
                "score.key.weight": right["score.query.weight"],
            },
        ),
        fix="Give each matrix its own gradient.",
    ),
    _row(
        "gradient-of-score-vector-missing",
        "The additive score's vector gets no gradient.",
        entries("d_score_parameters", lambda s, right: {"score.vector": 0.0 * right["score.vector"]}),
        fix=DETACH_FIX,
    ),
)


# Grouped heads ------------------------------------------------------------------------------------


def _of_group(reduce: Callable[[NDArray], NDArray]) -> Steps:
    """`reduce(gradients (B, G, H // G, Lk, d))` in place of the sum over axis 2, for keys and values."""

    def by_group(state: State, per_head: NDArray) -> NDArray:
        batch, heads, length, head_dim = per_head.shape
        groups = state.config.num_kv_heads
        return reduce(per_head.reshape(batch, groups, heads // groups, length, head_dim))

    def d_keys(state: State) -> NDArray:
        if is_product(state):
            per_head = state["d_similarity"].swapaxes(-1, -2) @ state["queries"] * state.config.softmax_scale
        else:
            per_head = state["d_additive_hidden"].sum(axis=2) @ state.parameters["score.key.weight"]
        return by_group(state, per_head)

    def d_values(state: State) -> NDArray:
        return by_group(state, state["kept_weights"].swapaxes(-1, -2) @ state["d_heads"])

    return {"d_keys": d_keys, "d_values": d_values}


_row = Table(GRADIENTS, "Add up the gradients of all query heads that read a key/value head.")

GROUPS = (
    _row(
        "gradient-of-group-averaged",
        "The gradient of a key/value head is the mean over its query heads.",
        _of_group(lambda g: g.mean(axis=2)),
    ),
    _row(
        "gradient-of-group-first",
        "A key/value head gets the gradient of its first query head alone.",
        _of_group(lambda g: g[:, :, 0]),
    ),
    _row(
        "gradient-of-group-last",
        "A key/value head gets the gradient of its last query head alone.",
        _of_group(lambda g: g[:, :, -1]),
    ),
)


# Dropout ------------------------------------------------------------------------------------------


_row = Table(GRADIENTS, "Multiply by keep / (1 - p).")

DROPOUT = (
    _row(
        "gradient-of-values-without-dropout",
        "The values' gradient uses the weights before dropout.",
        {"d_values": lambda s: d_values_by(s, s["weights"])},
        fix="Use the weights after dropout.",
    ),
    _row(
        "gradient-of-weights-without-dropout",
        "The weights' gradient leaves out dropout's factor.",
        {"d_weights": lambda s: s["d_kept_weights"]},
    ),
    _row(
        "gradient-dropout-twice",
        "Dropout's factor is applied twice in the weights' gradient.",
        {"d_weights": lambda s: s["d_kept_weights"] * dropout_factor(s) ** 2},
        fix="Multiply by keep / (1 - p) once.",
    ),
)

BUGS = (*SOFTMAX, *SCORES, *GROUPS, *DROPOUT)
