"""The bound of every gradient (see bounds.py): the reference's backward steps, with the errors that each adds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.bounded import Bounded, Rounding
from conformance.bounds.forward import TANH_ULPS, before_cap, moved_through, repeated, scaled_product, within
from mha_core.heads import merge_heads, split_heads
from mha_core.reference.forward import dropout_factor
from mha_core.reference.state import State

SOFTMAX_BACKWARD_ROUNDINGS = 8
"""Roundings between the weights' gradient and the scores', whichever way a framework writes softmax backwards."""


def backward_bounds(state: State, r: Rounding, b: dict[str, Bounded]) -> dict[str, Bounded]:
    """The bound of every gradient, by its public name."""
    config = state.config
    cotangent = Bounded.exact(state["d_output"])
    heads, values = b["heads"].map(merge_heads), repeated(state, b["values"])
    d_merged = cotangent
    if config.projections:
        d_merged = r.product(cotangent, Bounded.exact(state.parameters["out_proj.weight"]))
    d_heads = d_merged.map(lambda array: split_heads(array, config.num_heads))
    d_weights = r.product(d_heads, values.T)
    if state.inputs.dropout_keep is not None:
        d_weights = r.times(d_weights, dropout_factor(state))
    d_scores = _softmax_backward(state, r, b, d_heads, d_weights)
    d_values = _over_queries(state, r, r.product, b["kept_weights"], d_heads)

    gradients: dict[str, Bounded] = {}
    if state.inputs.mask.bias is not None:
        gradients["bias"] = _to_shape(r, d_scores, state.inputs.mask.bias.shape)
    d_similarity = _softcap_backward(state, r, b, d_scores)
    if config.score == "additive":
        d_queries, d_keys, parameters = _additive_backward(state, r, b, d_similarity)
    else:
        keys = repeated(state, b["keys"])
        d_queries = scaled_product(state, r, d_similarity, keys)
        d_keys = _over_queries(state, r, partial(scaled_product, state, r), d_similarity, b["queries"])
        parameters = {}
    past = slice(None, state.sizes.past_len)
    if state.inputs.past_keys is not None:
        gradients["past_keys"] = d_keys.map(lambda array: array[:, :, past])
        gradients["past_values"] = d_values.map(lambda array: array[:, :, past])
    d_keys, d_values = (x.map(lambda array: array[:, :, state.sizes.past_len :]) for x in (d_keys, d_values))
    projections: tuple[tuple[str, str, NDArray, Bounded], ...] = (
        ("q_proj", "queries", state.inputs.queries, d_queries),
        ("k_proj", "keys", state["key_inputs"], d_keys),
        ("v_proj", "values", state["value_inputs"], d_values),
    )
    for projection, name, x, gradient in projections:
        merged = gradient.map(merge_heads)
        if config.projections:
            gradients[name] = r.product(merged, Bounded.exact(state.parameters[f"{projection}.weight"]))
            gradients.update(_parameter_gradients(state, r, projection, Bounded.exact(x), merged))
        else:
            gradients[name] = gradient if state.is_split else merged
    if config.projections:
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


def _softcap_backward(state: State, r: Rounding, b: dict[str, Bounded], d_scores: Bounded) -> Bounded:
    """The gradient dS (1 - tanh^2(x / c)), of x = the score before the softcap."""
    softcap = state.config.softcap
    if softcap is None:
        return d_scores
    x = b["similarity"]
    inside = np.where(state["allowed"], np.tanh(x.v / softcap), 0.0)
    moved = moved_through(r, np.tanh, Bounded(x.v / softcap, before_cap(r, x) / softcap))
    e = r.add(moved, 2.0 * (TANH_ULPS + 2.0) * r.unit(r.precision.u) * np.maximum(np.abs(inside), r.precision.u))
    steepness = np.minimum(2.0 * (np.abs(inside) + e) * e, within(r, 1.0, 1.0))  # the slope stays within 0..1
    slope = r.store(Bounded(1.0 - inside**2, r.add(steepness, 2.0 * r.unit(r.precision.u))))
    # Automatic differentiation takes c, the slope and 1 / c one after the other: what c dS, or that times the slope,
    # loses where it is stored below the normal numbers (tau each) is divided by c.
    flushed = 2.0 * r.precision.tau / min(1.0, softcap)
    error = r.add(d_scores.e * np.abs(slope.v), np.abs(d_scores.v) * slope.e, d_scores.e * slope.e, flushed)
    return r.store(Bounded(state["d_similarity"], np.where(state["allowed"], error, 0.0)))


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
    return r.total(x.map(lambda array: array.reshape(batch, groups, heads // groups, length, head_dim)), (2,))


def _fold_groups(state: State, x: Bounded) -> Bounded:
    """(B, H, Lq, n) -> (B, G, H / G * Lq, n): the query heads of a group as more queries of their key head."""
    batch, heads, length, width = x.v.shape
    groups = state.config.num_kv_heads
    return x.map(lambda array: array.reshape(batch, groups, heads // groups * length, width))


def _over_queries(
    state: State, r: Rounding, product: Callable[[Bounded, Bounded], Bounded], a: Bounded, b: Bounded
) -> Bounded:
    """A^T B (B, G, Lk, n), summed over the queries and the query heads of a group: head by head and then the
    group, or all in one sum.
    """
    apart = _sum_groups(state, r, product(a.T, b))
    return _either(apart, product(_fold_groups(state, a).T, _fold_groups(state, b)))


def _either(one: Bounded, other: Bounded) -> Bounded:
    """The same numbers, computed in either of two ways."""
    return Bounded(one.v, np.maximum(one.e, other.e))


def _to_shape(r: Rounding, x: Bounded, shape: tuple[int, ...]) -> Bounded:
    """Broadcasting backwards: the sum over every axis that was repeated, the added ones first or all at once."""
    leading = tuple(range(x.v.ndim - len(shape)))
    repeated = tuple(axis for axis, size in enumerate(shape, start=len(leading)) if size == 1 and x.v.shape[axis] != 1)
    if not leading and not repeated:
        return x
    at_once = r.total(x, (*leading, *repeated), keepdims=True)
    in_turn = r.total(x, leading, keepdims=True) if leading else x
    if repeated:
        in_turn = r.total(in_turn, repeated, keepdims=True)
    return _either(in_turn, at_once).map(lambda array: array.reshape(shape))


def _parameter_gradients(
    state: State, r: Rounding, projection: str, x: Bounded, gradient: Bounded
) -> dict[str, Bounded]:
    """Of the weight: gradient^T x over all rows; of the bias: the sum of the rows."""

    def as_rows(array: NDArray) -> NDArray:
        return array.reshape(-1, array.shape[-1])

    rows = gradient.map(as_rows)
    found = {f"{projection}.weight": r.product(rows.T, x.map(as_rows))}
    if f"{projection}.bias" in state.parameters:
        found[f"{projection}.bias"] = r.total(rows, (0,))
    return found


def _additive_backward(
    state: State, r: Rounding, b: dict[str, Bounded], d_scores: Bounded
) -> tuple[Bounded, Bounded, dict[str, Bounded]]:
    """Gradients of queries (B, H, Lq, d), of keys (B, G, Lk, d), and of the score's parameters."""
    config, hidden, w = state.config, b["hidden"], state.parameters["score.vector"]
    slope = r.store(Bounded(1.0 - hidden.v**2, 2.0 * hidden.most * hidden.e + 2.0 * r.unit(r.precision.u)))
    outer = r.times(d_scores.map(lambda array: array[..., None]), w)  # dS * w
    inside = r.store(
        Bounded(outer.v * slope.v, r.add(outer.e * np.abs(slope.v), np.abs(outer.v) * slope.e, outer.e * slope.e))
    )
    by_query, by_key = r.total(inside, (3,)), r.total(inside, (2,))
    # The query heads of one group, as `_over_queries` has them: (B, G, H / G, Lq, Lk, S).
    batch, heads, *rest = inside.v.shape
    groups = config.num_kv_heads
    grouped = inside.map(lambda array: array.reshape(batch, groups, heads // groups, *rest))
    by_group_key = r.total(grouped, (2, 3))

    def as_rows(array: NDArray) -> NDArray:
        return array.reshape(-1, array.shape[-1])

    def parameter(d_projected: Bounded, x: Bounded) -> Bounded:
        return r.product(d_projected.map(as_rows).T, x.map(as_rows))

    flat_scores = d_scores.map(lambda array: array.reshape(1, -1))
    parameters = {
        "score.query.weight": parameter(by_query, b["queries"]),
        "score.key.weight": _either(parameter(by_key, repeated(state, b["keys"])), parameter(by_group_key, b["keys"])),
        "score.vector": r.product(flat_scores, hidden.map(as_rows)).map(lambda array: array[0]),
    }
    of_query, of_key = (Bounded.exact(state.parameters[f"score.{name}.weight"]) for name in ("query", "key"))
    d_queries = r.product(by_query, of_query)
    d_keys = _either(_sum_groups(state, r, r.product(by_key, of_key)), r.product(by_group_key, of_key))
    return d_queries, d_keys, parameters
