"""The bound of every stage (see bounds.py): the reference's forward steps, with the errors that each adds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.bounded import LAMBDA, Bounded, Rounding
from mha_core.call.masks import additive_bias
from mha_core.heads import merge_heads, repeat_kv_heads, split_heads
from mha_core.reference import forward
from mha_core.reference.forward import additive_hidden, dropout_factor
from mha_core.reference.state import State

SCALE_ROUNDINGS = 4
"""Roundings that a scale can cost, wherever an implementation applies it: to q, to k, to both, to the scores."""

QUOTIENT_ROUNDINGS = 2
"""Roundings of one weight after its exponential: the reciprocal of the sum, and the product with it."""

SMALL_GROWTH = 1.0
"""Up to here an exponential's error is told by expm1, which is exact for small ones; above, by logarithms."""

TANH_ULPS = 8.0
"""Error of one tanh in units in the last place; the rational approximations of the frameworks stay below."""


def forward_bounds(state: State, r: Rounding) -> dict[str, Bounded]:
    """Every stage, and what the backward direction needs besides: kept_weights, r, hidden."""
    config, inputs = state.config, state.inputs
    b: dict[str, Bounded] = {}
    sources = (
        ("queries", "q_proj", inputs.queries, config.num_heads),
        ("keys", "k_proj", state["key_inputs"], config.num_kv_heads),
        ("values", "v_proj", state["value_inputs"], config.num_kv_heads),
    )
    for stage, projection, x, num_heads in sources:
        projected = _project(state, r, projection, Bounded.exact(x))
        b[stage] = after_past(state, stage, projected.map(partial(split_heads, num_heads=num_heads)))
    b["scores"] = _scores(state, r, b)
    growth, shared = _growth(state, r, b["scores"])
    b["weights"] = _weights(state, r, growth, shared)
    b["kept_weights"] = b["weights"]
    if inputs.dropout_keep is not None:
        b["kept_weights"] = r.times(b["weights"], dropout_factor(state))
    b["heads"] = _heads(state, r, b, growth, shared)
    projected = _project(state, r, "out_proj", b["heads"].map(merge_heads))
    b["output"] = Bounded(state["output"], projected.e)
    return b


def after_past(state: State, stage: str, new: Bounded) -> Bounded:
    """The stage of these projected heads (B, H or G, L, d): keys and values stand after an exact past."""
    past_len = state.sizes.past_len if stage in ("keys", "values") else 0
    e = np.concatenate([np.zeros((*new.e.shape[:2], past_len, new.e.shape[3])), new.e], axis=2)
    return Bounded(state[stage], e)


def _project(state: State, r: Rounding, projection: str, x: Bounded) -> Bounded:
    """(B, L, in) -> (B, L, out): x W^T + b, the bias added afterwards or as the first term of the sum."""
    if not state.config.projections:
        return x
    projected = r.product(x, Bounded.exact(state.parameters[f"{projection}.weight"].T))
    bias = state.parameters.get(f"{projection}.bias")
    if bias is None:
        return projected
    as_first_term = r.gamma(x.v.shape[-1] + 1, r.precision.ua) * np.abs(bias)
    return r.plus(projected, Bounded(bias, as_first_term))


def repeated(state: State, x: Bounded) -> Bounded:
    return x.map(lambda array: repeat_kv_heads(array, state.config.num_heads))


def _scores(state: State, r: Rounding, b: dict[str, Bounded]) -> Bounded:
    q, k = b["queries"], repeated(state, b["keys"])
    if state.config.score == "additive":
        b["hidden"] = _hidden(state, r, q, k)
        similarity = r.product(b["hidden"], Bounded.exact(state.parameters["score.vector"][:, None]))
        scores = similarity.map(lambda array: array[..., 0])
    else:
        scores = scaled_product(state, r, q, k.T)
    b["similarity"] = scores
    scores = _capped(state, r, scores)
    if state.inputs.mask.bias is not None:
        scores = r.plus(scores, Bounded.exact(additive_bias(state.inputs.mask)))
    # Excluded places count for nothing, whatever stands in them.
    return Bounded(state["scores"], np.where(state["allowed"], scores.e, 0.0))


def _capped(state: State, r: Rounding, x: Bounded) -> Bounded:
    """The score x under a softcap, c tanh(x / c)."""
    softcap = state.config.softcap
    if softcap is None:
        return x
    capped, inside = forward.cap(state, x.v), before_cap(r, x)
    # The product is rounded after the tanh, and c itself may be.
    own = 2.0 * (TANH_ULPS + 1.0) * r.unit(r.precision.u) * np.abs(capped)
    moved = moved_through(r, lambda array: forward.cap(state, array), Bounded(x.v, inside))
    return r.store(Bounded(capped, r.add(moved, own, max(1.0, softcap) * r.precision.tau)))


def before_cap(r: Rounding, x: Bounded) -> NDArray:
    """The error of a score that a softcap's tanh sees: the quotient by c is rounded, and c may be."""
    return r.add(x.e, 2.0 * r.unit(r.precision.u) * x.most)


def moved_through(r: Rounding, rising: Callable[[NDArray], NDArray], x: Bounded) -> NDArray:
    """The bound on f(x) of a rising f with slopes of at most 1: where it is flat, an error inside vanishes."""
    middle = rising(x.v)
    up, down = rising(x.v + x.e) - middle, middle - rising(x.v - x.e)
    return np.minimum(x.e, within(r, np.maximum(up, down), up + down))


def scaled_product(state: State, r: Rounding, a: Bounded, b: Bounded) -> Bounded:
    """A @ b * scale, stored; the scale may be applied anywhere."""
    scale = state.config.softmax_scale
    scaled = Bounded(a.v * scale, a.e * abs(scale))
    plain = r.product(scaled, b)
    roundings = 0 if scale == 1.0 else SCALE_ROUNDINGS
    anywhere = r.gamma(roundings, r.precision.u) * (scaled.most @ b.most)
    # A factor that becomes 0 because it was scaled meets the other one, which was not.
    flushed = (
        r.precision.tau * max(1.0, abs(scale)) ** 0.5 * (a.most.sum(-1)[..., :, None] + b.most.sum(-2)[..., None, :])
    )
    return r.store(Bounded(plain.v, r.add(plain.e, anywhere, 0.0 if scale == 1.0 else flushed)))


def _hidden(state: State, r: Rounding, q: Bounded, k: Bounded) -> Bounded:
    """tanh(A q + C k). Its slope is at most 1, so an error inside gets no larger outside."""
    from_query = r.product(q, Bounded.exact(state.parameters["score.query.weight"].T))
    from_key = r.product(k, Bounded.exact(state.parameters["score.key.weight"].T))
    inside = r.plus(
        from_query.map(lambda array: array[:, :, :, None, :]), from_key.map(lambda array: array[:, :, None, :, :])
    )
    hidden = additive_hidden(state)
    return r.store(Bounded(hidden, r.add(inside.e, 2.0 * TANH_ULPS * r.unit(r.precision.u) * np.abs(hidden))))


def _growth(state: State, r: Rounding, scores: Bounded) -> tuple[NDArray, NDArray]:
    """How much each weight of a row can be off by itself, and how much all of them together.

    growth (B, H, Lq, Lk), a factor of at most e^growth: the error of the score, of its way into the
    exponential (the maximum subtracted; in base 2, times log2(e), which is itself rounded), and of the
    exponential. shared (B, H, Lq, 1), a factor of 1 + shared: the error of the sum that a row is divided
    by; and of its logarithm and the maximum, where weights are exp(score - logsumexp).
    """
    p, allowed = r.precision, state["allowed"]
    blocks = p.key_blocks(state.sizes.key_len)
    highest = _row_maximum(scores.v, allowed)
    distance = np.where(allowed, np.abs(scores.v - highest), 0.0)
    furthest = np.where(allowed, scores.e, 0.0).max(axis=-1, keepdims=True, initial=0.0)
    distance += scores.e + furthest
    # The maximum subtracted, log2(e) rounded, and times log2(e): before the maximum is subtracted, or after.
    steps = (distance, distance, np.maximum(distance, np.abs(scores.v)))
    exponent = r.add(*(r.unit(p.us) * step for step in steps)) * (2.0 if blocks > 1 else 1.0)
    exponential = -blocks * np.log1p(-2.0 * p.exp_ulps * r.unit(p.us))
    growth = np.where(allowed, np.minimum(r.add(scores.e, exponent, exponential), 1e300), 0.0)
    n = max(state.sizes.key_len, 1)
    # The maximum is rounded twice: times log2(e), and plus the logarithm, which is at most log n.
    logsumexp = 2.0 * r.unit(p.us) * (np.abs(highest) + furthest) + (1.0 + 2.0 * p.exp_ulps) * p.us * np.log(n)
    return growth, r.gamma(n + 2 * blocks, p.us) + np.expm1(np.minimum(logsumexp, 1.0))


def _row_maximum(scores: NDArray, allowed: NDArray) -> NDArray:
    highest = np.where(allowed, scores, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    return np.where(np.isneginf(highest), 0.0, highest)


def _extremes(state: State, r: Rounding, growth: NDArray) -> tuple[NDArray, NDArray]:
    """The least and the most that each weight can be, where a row's errors are so large that any key may win."""
    allowed, scores = state["allowed"], state["scores"]
    distance = np.where(allowed, scores - _row_maximum(scores, allowed), -np.inf)
    least = np.exp(distance - growth - _logsumexp(distance + growth))
    most = np.exp(distance + growth - _logsumexp(distance - growth))
    return least, np.minimum(most, within(r, 1.0, 1.0))


def within(r: Rounding, furthest: Any, width: Any) -> Any:
    """The bound on the error of a number that stays within an interval: how far its ends are, or how wide it is.

    Its standard deviation is at most half the width (Popoviciu), and a probabilistic bound is LAMBDA of
    those: cut off at the ends, errors could no longer be added up by their squares.
    """
    return 0.5 * LAMBDA * width if r.probabilistic else furthest


def _logsumexp(x: NDArray) -> NDArray:
    highest = x.max(axis=-1, keepdims=True, initial=-np.inf)
    highest = np.where(np.isneginf(highest), 0.0, highest)
    return highest + np.log(np.exp(x - highest).sum(axis=-1, keepdims=True))


def _weights(state: State, r: Rounding, growth: NDArray, shared: NDArray) -> Bounded:
    weights = state["weights"]
    up, down = np.exp(growth), np.exp(-growth)
    most = (weights * up).sum(axis=-1, keepdims=True)
    least = (weights * down).sum(axis=-1, keepdims=True)
    rho = shared + _own_roundings(state, r)
    upper = weights * up * (1.0 + rho) / np.where(least > 0.0, least, 1.0)
    lower = weights * down * (1.0 - rho) / np.where(most > 0.0, most, 1.0)
    e = np.maximum(upper - weights, weights - lower)
    if (growth > SMALL_GROWTH).any():
        least, most = _extremes(state, r, growth)
        extreme = np.maximum(most * (1.0 + rho) - weights, weights - least * (1.0 - rho))
        e = np.where(_any_key(growth), np.where(state["allowed"], extreme, 0.0), e)
    return r.store(Bounded(weights, e))


def _any_key(growth: NDArray) -> NDArray:
    """Bool (B, H, Lq, 1): the rows with errors so large that any key may win."""
    return (growth > SMALL_GROWTH).any(axis=-1, keepdims=True)


def _heads(state: State, r: Rounding, b: dict[str, Bounded], growth: NDArray, shared: NDArray) -> Bounded:
    """The weighted sum. Errors of the weights cancel where the values are alike, hence |v_j - o|; what
    all weights of a row share is a factor of the whole sum.
    """
    values = repeated(state, b["values"])
    if state.inputs.dropout_keep is not None:
        return r.product(b["kept_weights"], values, state["heads"])
    weights = b["weights"]
    least = (weights.v * np.exp(-growth)).sum(axis=-1, keepdims=True)
    share = weights.v * np.expm1(growth) / np.where(least > 0.0, least, 1.0)
    if (growth > SMALL_GROWTH).any():
        most = np.where(state["allowed"], _extremes(state, r, growth)[1], 0.0)
        share = np.where(_any_key(growth), most, share)
    spread = values.v[:, :, None] - state["heads"][:, :, :, None]  # (B, H, Lq, Lk, dv)
    moved = r.carried(share[:, :, :, None, :], spread)[:, :, :, 0]
    if r.probabilistic:
        # A wrong scale, or query, moves a row's scores together: up above their mean, and down below it.
        mean = (weights.v * state["scores"]).sum(axis=-1, keepdims=True, where=state["allowed"])
        tilted = np.where(state["scores"] < mean, -share, share)
        moved = np.maximum(moved, np.abs(tilted[:, :, :, None, :] @ spread)[:, :, :, 0])
    # However wrong the weights, a head stays among the values that it may attend to.
    furthest = np.where(state["allowed"][..., None], np.abs(spread), 0.0).max(axis=3, initial=0.0)
    moved = np.minimum(moved, within(r, furthest, 2.0 * furthest))
    factor = shared * (np.abs(state["heads"]) + moved)
    own = _own_roundings(state, r) + 2.0 * r.unit(r.precision.u)
    stored = Bounded(weights.v, own * weights.most + r.precision.tau)
    return r.store(Bounded(state["heads"], r.add(moved, factor, r.product(stored, values).e)))


def _own_roundings(state: State, r: Rounding) -> float:
    """What a weight is off by itself after its exponential: its quotient, and an online softmax's rescaling."""
    blocks = r.precision.key_blocks(state.sizes.key_len)
    return float(r.gamma(QUOTIENT_ROUNDINGS + 2 * blocks, r.precision.us))
