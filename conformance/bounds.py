"""The only tolerances: how far each element of each stage and gradient may lie from the reference.

Computed, not chosen. Errors are carried through the same steps as the reference: every stage is a
`Bounded`, and the rules of `bounded.py` say what each operation adds. The tolerance of an element is
the smaller of the deterministic and the probabilistic bound; in float64, twice that, because the
reference rounds as well. Where the definition says "exactly", it is 0.

The bounds hold while nothing overflows and the subject computes with the precision that it declares.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.bounded import Bounded, Rounding
from conformance.precision import Precision
from conformance.problem import Problem
from mha_core.heads import merge_heads, repeat_kv_heads, split_heads
from mha_core.masks import additive_bias
from mha_core.reference import State, additive_hidden, dropout_factor
from mha_core.stages import STAGES

SCALE_ROUNDINGS = 4
"""Roundings that a scale can cost, wherever an implementation applies it: to q, to k, to both, to the scores."""

SOFTMAX_BACKWARD_ROUNDINGS = 8
"""Roundings between the weights' gradient and the scores', whichever way a framework writes softmax backwards."""

MOST_GROWTH = 300.0
"""An exponential that is off by e^300 is off by anything; more would only overflow."""

TANH_ULPS = 8.0
"""Error of one tanh in units in the last place; the rational approximations of the frameworks stay below."""


def allowed_error(problem: Problem, state: State, precision: Precision) -> dict[str, NDArray]:
    """The error allowed in each element.

    Args:
        problem: what was run, already rounded to the storage dtype.
        state: what the reference computed for it.
        precision: how the subject computes.

    Returns:
        Stage name -> array of the stage's shape; "gradients.NAME" -> array of the gradient's shape.
    """
    with np.errstate(all="ignore"):  # NaN and infinity are data; their places are compared exactly
        worst = _all_bounds(state, Rounding(precision, probabilistic=False))
        likely = _all_bounds(state, Rounding(precision, probabilistic=True))
        sides = 2.0 if precision.storage == "float64" else 1.0
        allowed = {name: sides * np.fmin(worst[name].e, likely[name].e) for name in worst}
    for array in allowed.values():
        array[np.isnan(array)] = 0.0  # beside a NaN, which is compared exactly
    _exact_where_defined(allowed, problem)
    return allowed


def _exact_where_defined(allowed: dict[str, NDArray], problem: Problem) -> None:
    """Excluded weights are exactly 0, the weight of a lone key is exactly 1, a row without a key gives
    exactly 0 and then the output bias, and no gradient reaches padding.
    """
    keys = problem.allowed()
    row_has_key = keys.any(axis=-1)
    allowed["weights"][~keys | (keys.sum(axis=-1, keepdims=True) == 1)] = 0.0
    allowed["heads"][~row_has_key] = 0.0
    allowed["output"][~row_has_key.any(axis=1)] = 0.0
    for name in ("keys", "values"):
        if f"gradients.{name}" in allowed:
            allowed[f"gradients.{name}"][problem.padding()] = 0.0


def _all_bounds(state: State, rounding: Rounding) -> dict[str, Bounded]:
    """Stage name, or "gradients.NAME" -> its bound."""
    bounds = _forward(state, rounding)
    found = {name: bounds[name] for name in STAGES}
    if state.inputs.cotangent is not None:
        gradients = _backward(state, rounding, bounds)
        found.update({f"gradients.{name}": gradient for name, gradient in gradients.items()})
    return found


# Forward ---------------------------------------------------------------------------------------


def _forward(state: State, r: Rounding) -> dict[str, Bounded]:
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
        b[stage] = Bounded(state[stage], split_heads(projected.e, num_heads))
    b["scores"] = _scores(state, r, b)
    growth, rho = _growth(state, r, b["scores"])
    b["weights"] = _weights(state, r, growth, rho)
    b["kept_weights"] = b["weights"]
    if inputs.dropout_keep is not None:
        b["kept_weights"] = r.times(b["weights"], dropout_factor(state))
    b["heads"] = _heads(state, r, b, growth, rho)
    projected = _project(state, r, "out_proj", b["heads"].map(merge_heads))
    b["output"] = Bounded(state["output"], projected.e)
    return b


def _project(state: State, r: Rounding, projection: str, x: Bounded) -> Bounded:
    """(B, L, in) -> (B, L, out): x W^T + b, the bias added afterwards or as the first term of the sum."""
    projected = r.product(x, Bounded.exact(state.weights[f"{projection}.weight"].T))
    bias = state.weights.get(f"{projection}.bias")
    if bias is None:
        return projected
    as_first_term = r.gamma(x.v.shape[-1] + 1, r.precision.ua) * np.abs(bias)
    return r.plus(projected, Bounded(bias, as_first_term))


def _repeated(state: State, x: Bounded) -> Bounded:
    return x.map(lambda array: repeat_kv_heads(array, state.config.num_heads))


def _scores(state: State, r: Rounding, b: dict[str, Bounded]) -> Bounded:
    q, k = b["queries"], _repeated(state, b["keys"])
    if state.config.score == "additive":
        b["hidden"] = _hidden(state, r, q, k)
        similarity = r.product(b["hidden"], Bounded.exact(state.weights["score.vector"][:, None]))
        scores = similarity.map(lambda array: array[..., 0])
    else:
        scores = _scaled_product(state, r, q, k.T)
    if state.inputs.mask.bias is not None:
        scores = r.plus(scores, Bounded.exact(additive_bias(state.inputs.mask)))
    # Excluded places count for nothing, whatever stands in them.
    return Bounded(state["scores"], np.where(state["allowed"], scores.e, 0.0))


def _scaled_product(state: State, r: Rounding, a: Bounded, b: Bounded) -> Bounded:
    """A @ b * scale, stored; the scale may be applied anywhere."""
    scale = state.config.softmax_scale
    scaled = Bounded(a.v * scale, a.e * abs(scale))
    plain = r.product(scaled, b)
    roundings = 0 if scale == 1.0 else SCALE_ROUNDINGS
    anywhere = r.gamma(roundings, r.precision.u) * (scaled.most @ b.most)
    return r.store(Bounded(plain.v, r.add(plain.e, anywhere)))


def _hidden(state: State, r: Rounding, q: Bounded, k: Bounded) -> Bounded:
    """tanh(A q + C k). Its slope is at most 1, so an error inside gets no larger outside."""
    from_query = r.product(q, Bounded.exact(state.weights["score.query.weight"].T))
    from_key = r.product(k, Bounded.exact(state.weights["score.key.weight"].T))
    inside = r.plus(
        from_query.map(lambda array: array[:, :, :, None, :]), from_key.map(lambda array: array[:, :, None, :, :])
    )
    hidden = additive_hidden(state)
    return r.store(Bounded(hidden, r.add(inside.e, 2.0 * TANH_ULPS * r.unit(r.precision.u) * np.abs(hidden))))


def _growth(state: State, r: Rounding, scores: Bounded) -> tuple[NDArray, float]:
    """How much each exponential can be off: a factor of at most e^growth, and 1 + rho for the sums.

    growth covers the error of the score, of subtracting the maximum, and of the exponential itself.
    """
    p, allowed = r.precision, state["allowed"]
    distance = np.where(allowed, np.abs(scores.v - _row_maximum(scores.v, allowed)), 0.0)
    furthest = np.where(allowed, scores.e, 0.0).max(axis=-1, keepdims=True, initial=0.0)
    subtraction = r.unit(p.us) * (distance + scores.e + furthest) * (2.0 if p.blocks > 1 else 1.0)
    exponential = -p.blocks * np.log1p(-2.0 * p.exp_ulps * r.unit(p.us))
    growth = np.where(allowed, np.minimum(scores.e + subtraction + exponential, MOST_GROWTH), 0.0)
    return growth, r.gamma(state.sizes.key_len + 2 + 2 * p.blocks, p.us)


def _row_maximum(scores: NDArray, allowed: NDArray) -> NDArray:
    highest = np.where(allowed, scores, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    return np.where(np.isneginf(highest), 0.0, highest)


def _weights(state: State, r: Rounding, growth: NDArray, rho: float) -> Bounded:
    weights = state["weights"]
    up, down = np.exp(growth), np.exp(-growth)
    most = (weights * up).sum(axis=-1, keepdims=True)
    least = (weights * down).sum(axis=-1, keepdims=True)
    upper = weights * up * (1.0 + rho) / np.where(least > 0.0, least, 1.0)
    lower = weights * down * (1.0 - rho) / np.where(most > 0.0, most, 1.0)
    # However wrong the scores, a weight stays between 0 and about 1.
    return r.store(Bounded(weights, np.minimum(np.maximum(upper - weights, weights - lower), 1.0 + rho)))


def _heads(state: State, r: Rounding, b: dict[str, Bounded], growth: NDArray, rho: float) -> Bounded:
    """The weighted sum. Errors of the weights cancel where the values are alike, hence |v_j - o|."""
    values = _repeated(state, b["values"])
    if state.inputs.dropout_keep is not None:
        return r.product(b["kept_weights"], values, state["heads"])
    weights = b["weights"]
    least = (weights.v * np.exp(-growth)).sum(axis=-1, keepdims=True)
    share = weights.v * np.expm1(growth) / np.where(least > 0.0, least, 1.0)
    spread = np.abs(values.v[:, :, None] - state["heads"][:, :, :, None])  # (B, H, Lq, Lk, dv)
    if r.probabilistic:
        moved = np.sqrt(np.einsum("bhqk,bhqkd->bhqd", share**2, spread**2))
    else:
        moved = np.einsum("bhqk,bhqkd->bhqd", share, spread)
    # However wrong the weights, a head stays among the values that it may attend to.
    furthest = np.where(state["allowed"][..., None], spread, 0.0).max(axis=3, initial=0.0)
    moved = np.minimum(moved, furthest)
    stored = Bounded(weights.v, (rho + 2.0 * r.unit(r.precision.u)) * weights.most + r.precision.tau)
    return r.store(Bounded(state["heads"], r.add(moved, r.product(stored, values).e)))


# Backward --------------------------------------------------------------------------------------


def _backward(state: State, r: Rounding, b: dict[str, Bounded]) -> dict[str, Bounded]:
    """The bound of every gradient, by its public name."""
    config = state.config
    cotangent = Bounded.exact(state["d_output"])
    heads, values = b["heads"].map(merge_heads), _repeated(state, b["values"])
    out_weight = Bounded.exact(state.weights["out_proj.weight"])
    d_heads = r.product(cotangent, out_weight).map(lambda array: split_heads(array, config.num_heads))
    d_weights = r.product(d_heads, values.T)
    if state.inputs.dropout_keep is not None:
        d_weights = r.times(d_weights, dropout_factor(state))
    d_scores = _softmax_backward(state, r, b, d_heads, d_weights)
    d_values = _sum_groups(state, r, r.product(b["kept_weights"].T, d_heads))

    gradients: dict[str, Bounded] = {}
    if state.inputs.mask.bias is not None:
        gradients["bias"] = _to_shape(r, d_scores, state.inputs.mask.bias.shape)
    if config.score == "additive":
        d_queries, d_keys, parameters = _additive_backward(state, r, b, d_scores)
    else:
        keys = _repeated(state, b["keys"])
        d_queries = _scaled_product(state, r, d_scores, keys)
        d_keys = _scaled_product(state, r, d_scores.T, b["queries"])
        parameters = {}
    projections: tuple[tuple[str, str, NDArray, Bounded], ...] = (
        ("q_proj", "queries", state.inputs.queries, d_queries),
        ("k_proj", "keys", state["key_inputs"], _sum_groups(state, r, d_keys)),
        ("v_proj", "values", state["value_inputs"], d_values),
    )
    for projection, name, x, gradient in projections:
        merged = gradient.map(merge_heads)
        gradients[name] = r.product(merged, Bounded.exact(state.weights[f"{projection}.weight"]))
        gradients.update(_parameter_gradients(state, r, projection, Bounded.exact(x), merged))
    gradients.update(_parameter_gradients(state, r, "out_proj", heads, cotangent))
    return {**gradients, **parameters}


def _softmax_backward(
    state: State, r: Rounding, b: dict[str, Bounded], d_heads: Bounded, d_weights: Bounded
) -> Bounded:
    """DS = P (dP - D), where D is the row sum of P dP, or of dO O, which is the same number."""
    weights, us = b["weights"], r.precision.us
    by_weights = r.product(_rows(weights), _columns(d_weights)).map(lambda array: array[..., 0])
    by_heads = r.product(_rows(d_heads), _columns(b["heads"])).map(lambda array: array[..., 0])
    row_sum = Bounded(by_weights.v, np.maximum(by_weights.e, by_heads.e))
    inside = r.add(d_weights.e, row_sum.e)
    e = r.add(
        weights.e * np.abs(d_weights.v - row_sum.v),
        weights.v * inside,
        weights.e * inside,
        r.gamma(SOFTMAX_BACKWARD_ROUNDINGS, us) * weights.most * (d_weights.most + row_sum.most),
    )
    return r.store(Bounded(state["d_scores"], np.where(state["allowed"], e, 0.0)))


def _rows(x: Bounded) -> Bounded:
    return x.map(lambda array: array[..., None, :])


def _columns(x: Bounded) -> Bounded:
    return x.map(lambda array: array[..., :, None])


def _sum_groups(state: State, r: Rounding, x: Bounded) -> Bounded:
    """(B, H, L, d) -> (B, G, L, d)."""
    batch, heads, length, head_dim = x.v.shape
    groups = state.config.num_kv_heads
    if heads == groups:
        return x
    return r.total(x.map(lambda array: array.reshape(batch, groups, -1, length, head_dim)), (2,))


def _to_shape(r: Rounding, x: Bounded, shape: tuple[int, ...]) -> Bounded:
    """Broadcasting backwards: the sum over every axis that was repeated."""
    x = x.map(lambda array: array.reshape(array.shape))
    leading = tuple(range(x.v.ndim - len(shape)))
    if leading:
        x = r.total(x, leading)
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.v.shape[axis] != 1)
    return r.total(x, repeated, keepdims=True) if repeated else x


def _parameter_gradients(
    state: State, r: Rounding, projection: str, x: Bounded, gradient: Bounded
) -> dict[str, Bounded]:
    """Of the weight: gradient^T x over all rows; of the bias: the sum of the rows."""

    def as_rows(array: NDArray) -> NDArray:
        return array.reshape(-1, array.shape[-1])

    rows = gradient.map(as_rows)
    found = {f"{projection}.weight": r.product(rows.T, x.map(as_rows))}
    if f"{projection}.bias" in state.weights:
        found[f"{projection}.bias"] = r.total(rows, (0,))
    return found


def _additive_backward(
    state: State, r: Rounding, b: dict[str, Bounded], d_scores: Bounded
) -> tuple[Bounded, Bounded, dict[str, Bounded]]:
    """Gradients of queries (B, H, Lq, d), of keys per query head, and of the score's parameters."""
    hidden, w = b["hidden"], state.weights["score.vector"]
    slope = r.store(Bounded(1.0 - hidden.v**2, 2.0 * hidden.most * hidden.e + 2.0 * r.unit(r.precision.u)))
    outer = r.times(d_scores.map(lambda array: array[..., None]), w)  # dS * w
    inside = r.store(
        Bounded(outer.v * slope.v, r.add(outer.e * np.abs(slope.v), np.abs(outer.v) * slope.e, outer.e * slope.e))
    )
    by_query, by_key = r.total(inside, (3,)), r.total(inside, (2,))
    keys = _repeated(state, b["keys"])

    def as_rows(array: NDArray) -> NDArray:
        return array.reshape(-1, array.shape[-1])

    def parameter(d_projected: Bounded, x: Bounded) -> Bounded:
        return r.product(d_projected.map(as_rows).T, x.map(as_rows))

    flat_scores = d_scores.map(lambda array: array.reshape(1, -1))
    parameters = {
        "score.query.weight": parameter(by_query, b["queries"]),
        "score.key.weight": parameter(by_key, keys),
        "score.vector": r.product(flat_scores, hidden.map(as_rows)).map(lambda array: array[0]),
    }
    d_queries = r.product(by_query, Bounded.exact(state.weights["score.query.weight"]))
    d_keys = r.product(by_key, Bounded.exact(state.weights["score.key.weight"]))
    return d_queries, d_keys, parameters
