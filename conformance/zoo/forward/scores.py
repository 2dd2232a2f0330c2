"""Scores done wrong: the scale, the additive bias, the score function."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Steps, Table, after, require
from mha_core.call.masks import additive_bias
from mha_core.reference import forward
from mha_core.reference.forward import cap
from mha_core.reference.state import State


def is_additive(state: State) -> bool:
    return state.config.score == "additive"


def is_product(state: State) -> bool:
    """Return whether the score is a product of queries and keys, scaled or not."""
    return not is_additive(state)


def transposed(mask: NDArray, scores: NDArray) -> NDArray:
    """Return the mask, broadcast to `scores` and with its last two axes swapped. Raises DoesNotApply unless Lq = Lk."""
    require(scores.shape[-1] == scores.shape[-2], "a mask can be transposed unnoticed only where Lq = Lk")
    return np.broadcast_to(mask, scores.shape).swapaxes(-1, -2)


# The scale ----------------------------------------------------------------------------------------


def _default(state: State) -> bool:
    return state.config.score == "scaled_dot" and state.config.scale is None


def _any(state: State) -> bool:
    return state.config.score == "scaled_dot"


def _given(state: State) -> bool:
    return state.config.scale is not None


def scaled(scale: Callable[[State], float], where: Callable[[State], bool] = _default) -> Steps:
    """Return {name: step}, where the step scales scores by `scale(state)` in calls for which `where(state)` is true."""
    return after("similarity", lambda s, right: s["unscaled"] * scale(s), where)


ONE_SCALE = "Multiply queries @ keys^T by 1 / sqrt(head_dim), or by the given scale in its place."
_row = Table("scores", ONE_SCALE)

SCALE = (
    _row(
        "scale-embed-dim",
        "Scores are divided by the root of the embedding's width, not of one head's.",
        scaled(lambda s: s.config.embed_dim**-0.5),
        seen_in="lucidrains/vit-pytorch#65",
    ),
    _row(
        "scale-query-dim",
        "Scores are divided by the root of the width of the query inputs, not of one head's.",
        scaled(lambda s: s.config.query_dim**-0.5),
    ),
    _row("scale-missing", "Scores are not scaled.", scaled(lambda s: 1.0, _any)),
    _row(
        "scale-twice",
        "Scores are scaled twice, on the queries and again on the product.",
        scaled(lambda s: s.config.softmax_scale**2, _any),
        fix="Scale once: the queries or the product.",
    ),
    _row(
        "scale-multiplied",
        "Scores are multiplied by sqrt(head_dim) instead of divided.",
        scaled(lambda s: s.config.head_dim**0.5),
    ),
    _row(
        "scale-without-root",
        "Scores are divided by head_dim, not by its root.",
        scaled(lambda s: 1.0 / s.config.head_dim),
    ),
    _row(
        "scale-value-head-dim",
        "Scores are divided by the root of the values' head size, not of the keys'.",
        scaled(lambda s: s.config.value_head_dim**-0.5),
    ),
    _row(
        "scale-num-heads",
        "Scores are divided by the root of the number of heads, not of head_dim.",
        scaled(lambda s: s.config.num_heads**-0.5),
    ),
    _row(
        "scale-key-length",
        "Scores are divided by the root of the number of keys, not of head_dim.",
        scaled(lambda s: max(s.sizes.key_len, 1) ** -0.5),
    ),
    _row(
        "scale-given-ignored",
        "A given scale is ignored: 1 / sqrt(head_dim) is used.",
        scaled(lambda s: s.config.head_dim**-0.5, _given),
    ),
    _row(
        "scale-given-on-top",
        "A given scale is applied on top of 1 / sqrt(head_dim) instead of in its place.",
        scaled(lambda s: s.config.softmax_scale * s.config.head_dim**-0.5, _given),
    ),
    _row(
        "scale-in-float32",
        "The scale is rounded to float32.",
        scaled(lambda s: float(np.float32(s.config.softmax_scale)), _any),
        fix="Compute the scale in the inputs' dtype.",
        seen_in="keras.layers.MultiHeadAttention",
    ),
    _row(
        "dot-scaled",
        "The plain dot product is scaled as the scaled one is.",
        scaled(lambda s: s.config.head_dim**-0.5, lambda s: s.config.score == "dot"),
        fix="Take the plain dot product as it is, without a scale.",
    ),
)


# The additive bias --------------------------------------------------------------------------------


def has_bias(state: State) -> bool:
    return state.inputs.mask.bias is not None


def _bias(combine: Callable[[NDArray, NDArray], NDArray]) -> Steps:
    """`combine(capped similarity, bias)` in place of their sum."""
    return after("scores", lambda s, right: combine(s["capped"], additive_bias(s.inputs.mask)), has_bias)


def _before_scale(state: State, right: NDArray) -> NDArray:
    return cap(state, (state["unscaled"] + additive_bias(state.inputs.mask)) * state.config.softmax_scale)


def _weights_plus_bias(state: State, weights: NDArray) -> NDArray:
    bias = additive_bias(state.inputs.mask) if has_bias(state) else 0.0
    return weights + np.where(state["allowed"], bias, 0.0)


OF_EACH = "Give each item and each head its own bias: broadcast it to (B, H, Lq, Lk)."
_row = Table("scores", "Add the bias to the scaled scores, as it is, before the softmax.")

BIAS = (
    _row("bias-dropped", "The additive bias is not added.", _bias(lambda capped, bias: capped)),
    _row(
        "bias-scaled",
        "The additive bias is added before the scale, so it is scaled too.",
        after("scores", _before_scale, lambda s: has_bias(s) and is_product(s)),
    ),
    _row("bias-subtracted", "The additive bias is subtracted.", _bias(lambda capped, bias: capped - bias)),
    _row("bias-twice", "The additive bias is added twice.", _bias(lambda capped, bias: capped + 2.0 * bias)),
    _row("bias-multiplied", "The additive bias multiplies the scores.", _bias(lambda capped, bias: capped * bias)),
    _row(
        "bias-shared-by-heads",
        "Every head gets the additive bias of head 0.",
        _bias(lambda capped, bias: capped + bias[:, :1]),
        fix=OF_EACH,
    ),
    _row(
        "bias-shared-by-items",
        "Every batch item gets the additive bias of item 0.",
        _bias(lambda capped, bias: capped + bias[:1]),
        fix=OF_EACH,
    ),
    _row(
        "bias-transposed",
        "The additive bias's rows and columns are exchanged.",
        _bias(lambda capped, bias: capped + transposed(bias, capped)),
        fix="Read the bias as (B, H, Lq, Lk): queries first.",
    ),
    _row(
        "bias-after-softmax",
        "The additive bias is added to the weights, after the softmax.",
        _bias(lambda capped, bias: capped),
        after("weights", _weights_plus_bias),
    ),
)


# The score function -------------------------------------------------------------------------------


def _hidden(score: Callable[[NDArray, NDArray, NDArray], NDArray], *, exchanged: bool = False) -> Steps:
    """`score(A q, C k, vector)` in place of the additive one; `exchanged`: C q and A k."""
    names = ("score.key.weight", "score.query.weight") if exchanged else ("score.query.weight", "score.key.weight")

    def unscaled(state: State, right: NDArray) -> NDArray:
        for_query, for_key = (state.parameters[name] for name in names)
        from_query = (state["queries"] @ for_query.T)[:, :, :, None, :]
        from_key = (state.heads_of("keys") @ for_key.T)[:, :, None, :, :]
        return score(from_query, from_key, state.parameters["score.vector"])

    return after("unscaled", unscaled, is_additive)


def _cosine(state: State, right: NDArray) -> NDArray:
    query_lengths = np.linalg.norm(state["queries"], axis=-1)
    return right / (query_lengths[:, :, :, None] * np.linalg.norm(state.heads_of("keys"), axis=-1)[:, :, None])


def _transposed(state: State) -> NDArray:
    require(state.sizes.query_len == state.sizes.key_len, "scores can be transposed unnoticed only where Lq = Lk")
    right = forward.unscaled(state)
    return right if is_additive(state) else right.swapaxes(-1, -2)


def _keys_reshaped(state: State, right: NDArray) -> NDArray:
    keys = state.heads_of("keys")
    batch, num_heads, length, head_dim = keys.shape
    return state["queries"] @ keys.reshape(batch, num_heads, head_dim, length)


_row = Table("scores", "score = vector . tanh(A query + C key), A = score.query.weight, C = score.key.weight.")

FUNCTION = (
    _row("additive-without-tanh", "The additive score leaves out the tanh.", _hidden(lambda q, k, w: (q + k) @ w)),
    _row(
        "additive-relu",
        "The additive score has a ReLU where the tanh belongs.",
        _hidden(lambda q, k, w: np.maximum(q + k, 0.0) @ w),
    ),
    _row(
        "additive-tanh-of-each",
        "The additive score takes the tanh of each term instead of their sum.",
        _hidden(lambda q, k, w: (np.tanh(q) + np.tanh(k)) @ w),
    ),
    _row(
        "additive-product",
        "The additive score multiplies its two terms.",
        _hidden(lambda q, k, w: np.tanh(q * k) @ w),
    ),
    _row(
        "additive-matrices-exchanged",
        "The additive score applies the query's matrix to the keys and the key's to the queries.",
        _hidden(lambda q, k, w: np.tanh(q + k) @ w, exchanged=True),
    ),
    _row(
        "additive-without-vector",
        "The additive score sums the hidden units without the vector.",
        _hidden(lambda q, k, w: np.tanh(q + k).sum(axis=-1)),
    ),
    _row(
        "additive-scaled",
        "The additive score is divided by sqrt(head_dim).",
        after("capped", lambda s, right: right * s.config.head_dim**-0.5, is_additive),
    ),
    _row(
        "scores-cosine",
        "Queries and keys are normalised to length 1 before their product.",
        after("unscaled", _cosine, is_product),
        fix="Use the queries and keys as they are, not divided by their lengths.",
    ),
    _row(
        "scores-transposed",
        "The scores are keys @ queries^T: row and column are exchanged.",
        {"unscaled": _transposed},
        fix="Compute queries @ keys^T, (B, H, Lq, Lk).",
    ),
    _row(
        "keys-reshaped-not-transposed",
        "Keys are reshaped to (d, Lk) instead of transposed before the product.",
        after("unscaled", _keys_reshaped, is_product),
        fix="Exchange the last two axes of the keys: keys.swapaxes(-1, -2).",
    ),
)

BUGS = (*SCALE, *BIAS, *FUNCTION)
