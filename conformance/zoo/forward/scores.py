"""Scores done wrong: the scale, the additive bias, the score function."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.call.masks import additive_bias
from mha_core.config import AttentionConfig
from mha_core.reference import forward
from mha_core.reference.forward import cap
from mha_core.reference.state import State, Step

SCALE_FIX = "Multiply queries @ keys^T by the config's softmax_scale once: 1 / sqrt(head_dim) unless a scale is given."
BIAS_FIX = "Add the bias to the scaled scores, as it is, before the softmax."
ADDITIVE_FIX = "score = vector . tanh(A query + C key), A = score.query.weight, C = score.key.weight."


def _scaled(scale: Callable[[State], float], affects: Callable[[AttentionConfig], bool]) -> Mapping[str, Step]:
    """Another scale, in the layers that `affects` names."""

    def similarity(state: State) -> NDArray:
        return state["unscaled"] * scale(state) if affects(state.config) else forward.similarity(state)

    return {"similarity": similarity}


def _default_scale(config: AttentionConfig) -> bool:
    return config.score == "scaled_dot" and config.scale is None


def _any_scale(config: AttentionConfig) -> bool:
    return config.score == "scaled_dot"


def _given_scale(config: AttentionConfig) -> bool:
    return config.scale is not None


def _scale_bug(
    id: str,
    sentence: str,
    scale: Callable[[State], float],
    affects: Callable[[AttentionConfig], bool] = _default_scale,
    seen_in: str = "",
) -> Bug:
    return Bug(id, sentence, "scores", SCALE_FIX, forward=_scaled(scale, affects), seen_in=seen_in)


SCALE = (
    _scale_bug(
        "scale-embed-dim",
        "Scores are divided by the root of the embedding's width, not of one head's.",
        lambda s: s.config.embed_dim**-0.5,
        seen_in="lucidrains/vit-pytorch#65",
    ),
    _scale_bug(
        "scale-query-dim",
        "Scores are divided by the root of the width of the query inputs, not of one head's.",
        lambda s: s.config.query_dim**-0.5,
    ),
    _scale_bug("scale-missing", "Scores are not scaled.", lambda s: 1.0, _any_scale),
    _scale_bug(
        "scale-twice",
        "Scores are scaled twice, on the queries and again on the product.",
        lambda s: s.config.softmax_scale**2,
        _any_scale,
    ),
    _scale_bug(
        "scale-multiplied",
        "Scores are multiplied by sqrt(head_dim) instead of divided.",
        lambda s: s.config.head_dim**0.5,
    ),
    _scale_bug(
        "scale-without-root", "Scores are divided by head_dim, not by its root.", lambda s: 1.0 / s.config.head_dim
    ),
    _scale_bug(
        "scale-value-head-dim",
        "Scores are divided by the root of the values' head size, not of the keys'.",
        lambda s: s.config.value_head_dim**-0.5,
    ),
    _scale_bug(
        "scale-num-heads", "Scores are divided by the root of the number of heads.", lambda s: s.config.num_heads**-0.5
    ),
    _scale_bug(
        "scale-key-length",
        "Scores are divided by the root of the number of keys.",
        lambda s: max(s.sizes.key_len, 1) ** -0.5,
    ),
    _scale_bug(
        "scale-given-ignored",
        "A given scale is ignored: 1 / sqrt(head_dim) is used.",
        lambda s: s.config.head_dim**-0.5,
        _given_scale,
    ),
    _scale_bug(
        "scale-given-on-top",
        "A given scale is applied on top of 1 / sqrt(head_dim) instead of in its place.",
        lambda s: s.config.softmax_scale * s.config.head_dim**-0.5,
        _given_scale,
    ),
    _scale_bug(
        "dot-scaled",
        "The plain dot product is scaled as the scaled one is.",
        lambda s: s.config.head_dim**-0.5,
        lambda config: config.score == "dot",
    ),
)


def transposed(mask: NDArray, scores: NDArray) -> NDArray:
    """Queries and keys of a mask of any kind exchanged; DoesNotApply unless Lq = Lk."""
    if scores.shape[-1] != scores.shape[-2]:
        raise DoesNotApply("a mask can be transposed unnoticed only where Lq = Lk")
    return np.broadcast_to(mask, scores.shape).swapaxes(-1, -2)


# The additive bias --------------------------------------------------------------------------------


def _with_bias(combine: Callable[[State, NDArray, NDArray], NDArray]) -> Mapping[str, Step]:
    """`combine(state, capped similarity, bias)` in place of their sum."""

    def scores(state: State) -> NDArray:
        if state.inputs.mask.bias is None:
            return forward.scores(state)
        return combine(state, state["capped"], additive_bias(state.inputs.mask))

    return {"scores": scores}


def _scores_before_scale(state: State, capped: NDArray, bias: NDArray) -> NDArray:
    if state.config.score == "additive":
        return forward.scores(state)
    return cap(state, (state["unscaled"] + bias) * state.config.softmax_scale)


def _weights_plus_bias(state: State) -> NDArray:
    bias = 0.0 if state.inputs.mask.bias is None else additive_bias(state.inputs.mask)
    return forward.weights(state) + np.where(state["allowed"], bias, 0.0)


def _bias_bug(id: str, sentence: str, forward: Mapping[str, Step], seen_in: str = "") -> Bug:
    return Bug(id, sentence, "scores", BIAS_FIX, forward=forward, seen_in=seen_in)


BIAS = (
    _bias_bug("bias-dropped", "The additive bias is not added.", _with_bias(lambda s, capped, bias: capped)),
    _bias_bug(
        "bias-scaled",
        "The additive bias is added before the scale, so it is scaled too.",
        _with_bias(_scores_before_scale),
    ),
    _bias_bug("bias-subtracted", "The additive bias is subtracted.", _with_bias(lambda s, capped, bias: capped - bias)),
    _bias_bug(
        "bias-twice", "The additive bias is added twice.", _with_bias(lambda s, capped, bias: capped + 2.0 * bias)
    ),
    _bias_bug(
        "bias-multiplied", "The additive bias multiplies the scores.", _with_bias(lambda s, capped, bias: capped * bias)
    ),
    _bias_bug(
        "bias-shared-by-heads",
        "Every head gets the additive bias of head 0.",
        _with_bias(lambda s, capped, bias: capped + bias[:, :1]),
    ),
    _bias_bug(
        "bias-shared-by-items",
        "Every batch item gets the additive bias of item 0.",
        _with_bias(lambda s, capped, bias: capped + bias[:1]),
    ),
    _bias_bug(
        "bias-transposed",
        "The additive bias's rows and columns are exchanged.",
        _with_bias(lambda s, capped, bias: capped + transposed(bias, capped)),
    ),
    _bias_bug(
        "bias-after-softmax",
        "The additive bias is added to the weights, after the softmax.",
        {**_with_bias(lambda s, capped, bias: capped), "weights": _weights_plus_bias},
    ),
)


# The score function -------------------------------------------------------------------------------


def _additive(score: Callable[[NDArray, NDArray, NDArray], NDArray], exchanged: bool = False) -> Mapping[str, Step]:
    """`score(A q, C k, vector)` in place of the additive one; `exchanged`: C q and A k."""

    def unscaled(state: State) -> NDArray:
        if state.config.score != "additive":
            return forward.unscaled(state)
        for_query, for_key = state.parameters["score.query.weight"], state.parameters["score.key.weight"]
        if exchanged:
            for_query, for_key = for_key, for_query
        from_query = (state["queries"] @ for_query.T)[:, :, :, None, :]
        from_key = (state.heads_of("keys") @ for_key.T)[:, :, None, :, :]
        return score(from_query, from_key, state.parameters["score.vector"])

    return {"unscaled": unscaled}


def _additive_scaled(state: State) -> NDArray:
    capped = forward.capped(state)
    return capped * state.config.head_dim**-0.5 if state.config.score == "additive" else capped


def _cosine(state: State) -> NDArray:
    if state.config.score == "additive":
        return forward.unscaled(state)
    lengths = (
        np.linalg.norm(state["queries"], axis=-1)[:, :, :, None]
        * np.linalg.norm(state.heads_of("keys"), axis=-1)[:, :, None]
    )
    return forward.unscaled(state) / lengths


def _transposed(state: State) -> NDArray:
    if state.sizes.query_len != state.sizes.key_len:
        raise DoesNotApply("scores can be transposed unnoticed only where Lq = Lk")
    right = forward.unscaled(state)
    return right if state.config.score == "additive" else right.swapaxes(-1, -2)


def _keys_reshaped(state: State) -> NDArray:
    if state.config.score == "additive":
        return forward.unscaled(state)
    keys = state.heads_of("keys")
    batch, num_heads, length, head_dim = keys.shape
    return state["queries"] @ keys.reshape(batch, num_heads, head_dim, length)


def _function_bug(id: str, sentence: str, fix: str, forward: Mapping[str, Step]) -> Bug:
    return Bug(id, sentence, "scores", fix, forward=forward)


FUNCTION = (
    _function_bug(
        "additive-without-tanh",
        "The additive score leaves out the tanh.",
        ADDITIVE_FIX,
        _additive(lambda q, k, w: (q + k) @ w),
    ),
    _function_bug(
        "additive-relu",
        "The additive score has a ReLU where the tanh belongs.",
        ADDITIVE_FIX,
        _additive(lambda q, k, w: np.maximum(q + k, 0.0) @ w),
    ),
    _function_bug(
        "additive-tanh-of-each",
        "The additive score takes the tanh of each term instead of their sum.",
        ADDITIVE_FIX,
        _additive(lambda q, k, w: (np.tanh(q) + np.tanh(k)) @ w),
    ),
    _function_bug(
        "additive-product",
        "The additive score multiplies its two terms.",
        ADDITIVE_FIX,
        _additive(lambda q, k, w: np.tanh(q * k) @ w),
    ),
    _function_bug(
        "additive-matrices-exchanged",
        "The additive score applies the query's matrix to the keys and the key's to the queries.",
        ADDITIVE_FIX,
        _additive(lambda q, k, w: np.tanh(q + k) @ w, exchanged=True),
    ),
    _function_bug(
        "additive-without-vector",
        "The additive score sums the hidden units without the vector.",
        ADDITIVE_FIX,
        _additive(lambda q, k, w: np.tanh(q + k).sum(axis=-1)),
    ),
    _function_bug(
        "additive-scaled",
        "The additive score is divided by sqrt(head_dim).",
        ADDITIVE_FIX,
        {"capped": _additive_scaled},
    ),
    _function_bug(
        "scores-cosine",
        "Queries and keys are normalised to length 1 before their product.",
        "Use the queries and keys as the projections give them.",
        {"unscaled": _cosine},
    ),
    _function_bug(
        "scores-transposed",
        "The scores are keys @ queries^T: row and column are exchanged.",
        "Compute queries @ keys^T, (B, H, Lq, Lk).",
        {"unscaled": _transposed},
    ),
    _function_bug(
        "keys-reshaped-not-transposed",
        "Keys are reshaped to (d, Lk) instead of transposed before the product.",
        "Exchange the last two axes of the keys: keys.swapaxes(-1, -2).",
        {"unscaled": _keys_reshaped},
    ),
)

BUGS = (*SCALE, *BIAS, *FUNCTION)
