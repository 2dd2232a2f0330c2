"""The bound of every backward step, under the step's own name (see forward.py)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.bounded import Bound, Bounded, Bounds, Rounding
from conformance.bounds.forward import TANH_ULPS, before_cap, exact, kept, merged, scaled_product, split
from conformance.bounds.query_key_norm import NormBounds, back_through
from conformance.bounds.rotary import rotated
from mha_core.heads import split_heads
from mha_core.parts.query_key_norm import NORMS
from mha_core.reference.backward import NORMED
from mha_core.reference.forward import PROJECTED

SOFTMAX_BACKWARD_ROUNDINGS = 8
"""Roundings between the weights' gradient and the scores', whichever way a framework writes softmax backwards."""

# From the output to the scores ----------------------------------------------------------------------


def through_projection(projection: str, b: Bounds) -> Bounded:
    """(B, L, out) -> (B, L, in): the error bound of the gradient with respect to a projection's input."""
    gradient: Bounded = b[f"d_{PROJECTED[projection][1]}"]
    if not b.state.config.projections:
        return gradient
    return b.rounding.product(gradient, Bounded.exact(b.state.parameters[f"{projection}.weight"]))


def d_kept_weights(b: Bounds) -> Bounded:
    """(B, H, Lq, Lk)."""
    return b.rounding.product(b["d_heads"], b.heads_of("values").T)


def d_values(b: Bounds) -> Bounded:
    """(B, G, Lk, dv)."""
    return _over_queries(b, b.rounding.product, b["kept_weights"], b["d_heads"])


def d_scores(b: Bounds) -> Bounded:
    """(B, H, Lq, Lk): the error bound of dS = P (dP - D), for D as row sums of P dP or of dO O (weights P, heads O)."""
    state, r, weights, d_weights = b.state, b.rounding, b["weights"], b["d_weights"]
    by_weights = r.product(_rows(weights), _columns(d_weights)).map(lambda array: array[..., 0])
    by_heads = r.product(_rows(b["d_heads"]), _columns(b["heads"])).map(lambda array: array[..., 0])
    row_sum = Bounded(by_weights.v, np.maximum(by_weights.e, by_heads.e))
    inside = r.add(d_weights.e, row_sum.e)
    e = r.add(
        weights.e * np.abs(d_weights.v - row_sum.v),
        weights.v * inside,
        weights.e * inside,
        r.gamma(SOFTMAX_BACKWARD_ROUNDINGS, r.precision.us) * weights.most * (d_weights.most + row_sum.most),
    )
    return r.store(Bounded(state["d_scores"], np.where(state["allowed"], e, 0.0)))


def _rows(x: Bounded) -> Bounded:
    return x.map(lambda array: array[..., None, :])


def _columns(x: Bounded) -> Bounded:
    return x.map(lambda array: array[..., :, None])


def d_bias(b: Bounds) -> Bounded | None:
    """Return the error bound of the additive bias's gradient, in the bias's shape; None if the mask has no bias."""
    bias = b.state.inputs.mask.bias
    return None if bias is None else _to_shape(b.rounding, b["d_scores"], bias.shape)


def _to_shape(r: Rounding, x: Bounded, shape: tuple[int, ...]) -> Bounded:
    """The sum of x down to `shape`, from which it was broadcast; the larger bound of two orders of summation.

    Either the added axes are summed first and the repeated ones afterwards, or all of them at once.
    """
    leading = tuple(range(x.v.ndim - len(shape)))
    repeated = tuple(axis for axis, size in enumerate(shape, start=len(leading)) if size == 1 and x.v.shape[axis] != 1)
    if not leading and not repeated:
        return x
    at_once = r.total(x, (*leading, *repeated), keepdims=True)
    in_turn = r.total(x, leading, keepdims=True) if leading else x
    if repeated:
        in_turn = r.total(in_turn, repeated, keepdims=True)
    return _either(in_turn, at_once).map(lambda array: array.reshape(shape))


# From the scores to queries and keys ----------------------------------------------------------------


def d_similarity(b: Bounds) -> Bounded:
    """(B, H, Lq, Lk): the error bound of dS (1 - tanh^2(x / c)), the gradient of the scores x before the softcap c."""
    state, r, d_scores = b.state, b.rounding, b["d_scores"]
    softcap = state.config.softcap
    if softcap is None:
        return d_scores
    x = b["similarity"]
    inside = np.where(state["allowed"], np.tanh(x.v / softcap), 0.0)
    moved = r.moved_through(np.tanh, Bounded(x.v / softcap, before_cap(r, x) / softcap))
    e = r.add(moved, 2.0 * (TANH_ULPS + 2.0) * r.unit(r.precision.u) * np.maximum(np.abs(inside), r.precision.u))
    steepness = np.minimum(2.0 * (np.abs(inside) + e) * e, r.within(1.0, 1.0))  # the slope stays within 0..1
    slope = r.store(Bounded(1.0 - inside**2, r.add(steepness, 2.0 * r.unit(r.precision.u))))
    # Automatic differentiation multiplies by c, the slope and 1 / c in turn. Each of the first two products can lose
    # tau where it falls below the normal numbers; that loss is then divided by c.
    flushed = 2.0 * r.precision.tau / min(1.0, softcap)
    error = r.add(d_scores.e * np.abs(slope.v), np.abs(d_scores.v) * slope.e, d_scores.e * slope.e, flushed)
    return r.store(Bounded(state["d_similarity"], np.where(state["allowed"], error, 0.0)))


def d_additive_hidden(b: Bounds) -> Bounded | None:
    """(B, H, Lq, Lk, S): the error bound of the gradient of A q + C k, the tanh's argument; None for other scores."""
    hidden, r = b["additive_hidden"], b.rounding
    if hidden is None:
        return None
    slope = r.store(Bounded(1.0 - hidden.v**2, 2.0 * hidden.most * hidden.e + 2.0 * r.unit(r.precision.u)))
    # The gradient times the score's vector.
    outer = r.times(b["d_similarity"].map(lambda array: array[..., None]), b.state.parameters["score.vector"])
    return r.elementwise(outer, slope)


class _Sums(NamedTuple):
    """Sums of `d_additive_hidden` (B, H, Lq, Lk, S) over its axes, as the gradients around it need them."""

    by_query: Bounded  # over the keys: (B, H, Lq, S)
    by_key: Bounded  # over the queries: (B, H, Lk, S)
    by_group_key: Bounded  # over the queries of all heads of a group: (B, G, Lk, S), as `_over_queries` has them


def _sums(b: Bounds) -> _Sums:
    inside, r = b["d_additive_hidden"], b.rounding
    batch, heads, *rest = inside.v.shape
    groups = b.state.config.num_kv_heads
    grouped = inside.map(lambda array: array.reshape(batch, groups, heads // groups, *rest))
    return _Sums(r.total(inside, (3,)), r.total(inside, (2,)), r.total(grouped, (2, 3)))


def d_queries(b: Bounds) -> Bounded:
    """(B, H, Lq, d)."""
    if b.state.config.score == "additive":
        return b.rounding.product(b.once(_sums).by_query, Bounded.exact(b.state.parameters["score.query.weight"]))
    return scaled_product(b, b["d_similarity"], b.heads_of("keys"))


def d_keys(b: Bounds) -> Bounded:
    """(B, G, Lk, d)."""
    if b.state.config.score != "additive":
        return _over_queries(b, partial(scaled_product, b), b["d_similarity"], b["queries"])
    sums, r, of_key = b.once(_sums), b.rounding, Bounded.exact(b.state.parameters["score.key.weight"])
    return _either(_sum_groups(b, r.product(sums.by_key, of_key)), r.product(sums.by_group_key, of_key))


def d_score_parameters(b: Bounds) -> dict[str, Bounded]:
    """Return name -> error bound of the gradient, for the additive score's three arrays; empty for a dot product."""
    if b.state.config.score != "additive":
        return {}
    sums, r = b.once(_sums), b.rounding

    def parameter(d_projected: Bounded, x: Bounded) -> Bounded:
        return r.product(d_projected.map(_as_rows).T, x.map(_as_rows))

    flat: Bounded = b["d_similarity"].map(lambda array: array.reshape(1, -1))
    return {
        "score.query.weight": parameter(sums.by_query, b["queries"]),
        "score.key.weight": _either(
            parameter(sums.by_key, b.heads_of("keys")), parameter(sums.by_group_key, b["keys"])
        ),
        "score.vector": r.product(flat, b["additive_hidden"].map(_as_rows)).map(lambda array: array[0]),
    }


def _as_rows(array: NDArray) -> NDArray:
    return array.reshape(-1, array.shape[-1])


def _sum_groups(bounds: Bounds, x: Bounded) -> Bounded:
    """(B, H, L, d) -> (B, G, L, d): the query heads of a group summed up."""
    batch, heads, length, head_dim = x.v.shape
    groups = bounds.state.config.num_kv_heads
    if heads == groups:
        return x
    return bounds.rounding.total(
        x.map(lambda array: array.reshape(batch, groups, heads // groups, length, head_dim)), (2,)
    )


def _fold_groups(bounds: Bounds, x: Bounded) -> Bounded:
    """(B, H, Lq, n) -> (B, G, H / G * Lq, n): the query heads of a group as more queries of their key head."""
    batch, heads, length, width = x.v.shape
    groups = bounds.state.config.num_kv_heads
    return x.map(lambda array: array.reshape(batch, groups, heads // groups * length, width))


def _over_queries(bounds: Bounds, product: Callable[[Bounded, Bounded], Bounded], a: Bounded, b: Bounded) -> Bounded:
    """A^T B (B, G, Lk, n), summed over the queries and the query heads of a group: head by head and then the
    group, or all in one sum.
    """
    apart = _sum_groups(bounds, product(a.T, b))
    return _either(apart, product(_fold_groups(bounds, a).T, _fold_groups(bounds, b)))


def _either(one: Bounded, other: Bounded) -> Bounded:
    """The larger of two bounds on one array, which an implementation may compute in either of two ways."""
    return Bounded(one.v, np.maximum(one.e, other.e))


# Through the projections to the inputs --------------------------------------------------------------


def without_past(step: str, b: Bounds) -> Bounded:
    """(B, G, Lk - Lp, d or dv): the error bound of `step` (B, G, Lk, d or dv) without the Lp keys of the past."""
    return b[step].map(lambda array: array[:, :, b.state.sizes.past_len :])


def normed(order: str, name: str, b: Bounds) -> Bounded:
    """(B, heads, L, d): the error bound of the gradient with respect to the input of the norm `name`.

    If the layer's norms are not where `order` says ("before" or "after" the rotation), the gradient passes unchanged.
    """
    settings = b.state.config.query_key_norm
    if settings is None or settings.order != order:
        gradient: Bounded = b[NORMED[order, name][1]]
        return gradient
    return through_norm(b, order, name).x


def through_norm(b: Bounds, order: str, name: str) -> NormBounds:
    """Return the NormBounds of the norm `name`: the error bounds of its gradients.

    The layer must have the norm where `order` says: "before" or "after" the rotation.
    """
    settings, (given, made) = b.state.config.query_key_norm, NORMED[order, name]
    assert settings is not None
    return back_through(b, name, b[given], b[made], settings)


def d_norm_parameters(b: Bounds) -> dict[str, Bounded]:
    """Return name -> error bound of the gradient of each weight and bias of the norm; empty in a layer without them."""
    settings = b.state.config.query_key_norm
    made = {} if settings is None else {name: through_norm(b, settings.order, name) for name in NORMS}
    found = {f"{name}.{kind}": getattr(bounds, kind) for name, bounds in made.items() for kind in ("weight", "bias")}
    return {name: bound for name, bound in found.items() if bound is not None}


def turned(side: str, b: Bounds) -> Bounded:
    """(B, heads, L, d): the error bound of the gradient of `side` ("queries" or "keys") before the rotation."""
    gradient: Bounded = b[f"d_rotated_{side}"]
    return gradient if b.state.config.rotary is None else rotated(b, gradient, side, back=True)


def d_projection_parameters(b: Bounds) -> dict[str, Bounded]:
    """Return name -> error bound of the gradient of each projection's W and b; empty in a layer without projections.

    With dY as the gradient of x W^T + b, W has the gradient dY^T x, and b the sum of the rows of dY.
    """
    found: dict[str, Bounded] = {}
    for projection, (given, made) in PROJECTED.items() if b.state.config.projections else ():
        rows = b[f"d_{made}"].map(_as_rows)
        found[f"{projection}.weight"] = b.rounding.product(rows.T, b[given].map(_as_rows))
        if f"{projection}.bias" in b.state.parameters:
            found[f"{projection}.bias"] = b.rounding.total(rows, (0,))
    return found


def d_inputs(b: Bounds) -> dict[str, Bounded]:
    """Return name -> error bound of the gradient, for queries, keys, values, and past keys and values, if any."""
    state = b.state
    found: dict[str, Bounded] = {
        "queries": b["d_query_inputs"],
        "keys": b["d_key_inputs"],
        "values": b["d_value_inputs"],
    }
    if state.is_split:
        for name, (num_heads, _) in state.config.head_shapes._asdict().items():
            found[name] = found[name].map(partial(split_heads, num_heads=num_heads))
    if state.inputs.past_keys is not None:
        for name in ("keys", "values"):
            found[f"past_{name}"] = b[f"d_{name}"].map(lambda array: array[:, :, : state.sizes.past_len])
    return found


BACKWARD_BOUNDS: Mapping[str, Bound] = {
    "d_output": partial(exact, "d_output"),  # given
    "d_merged": partial(through_projection, "out_proj"),
    "d_heads": partial(split, "d_merged", "num_heads"),
    "d_kept_weights": d_kept_weights,
    "d_values": d_values,
    "d_weights": partial(kept, "d_kept_weights"),
    "d_scores": d_scores,
    "d_bias": d_bias,
    "d_similarity": d_similarity,
    "d_additive_hidden": d_additive_hidden,
    "d_queries": d_queries,
    "d_keys": d_keys,
    "d_score_parameters": d_score_parameters,
    "d_new_keys": partial(without_past, "d_keys"),
    "d_rotated_queries": partial(normed, "after", "q_norm"),
    "d_rotated_keys": partial(normed, "after", "k_norm"),
    "d_normed_queries": partial(turned, "queries"),
    "d_normed_keys": partial(turned, "keys"),
    "d_projected_queries": partial(normed, "before", "q_norm"),
    "d_projected_keys": partial(normed, "before", "k_norm"),
    "d_norm_parameters": d_norm_parameters,
    "d_projected_values": partial(without_past, "d_values"),
    "d_q_proj": partial(merged, "d_projected_queries"),
    "d_k_proj": partial(merged, "d_projected_keys"),
    "d_v_proj": partial(merged, "d_projected_values"),
    "d_query_inputs": partial(through_projection, "q_proj"),
    "d_key_inputs": partial(through_projection, "k_proj"),
    "d_value_inputs": partial(through_projection, "v_proj"),
    "d_projection_parameters": d_projection_parameters,
    "d_inputs": d_inputs,
}
