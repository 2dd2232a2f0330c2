"""The bound of every forward step, under the step's own name: the errors that it adds to those of the steps before it.

As the step `scores` of the reference reads a State and gives an array, the bound `scores` reads the Bounds and gives a
Bounded.

Of the softmax: a weight is wrong in two ways: by itself (the error of its score and of its exponential), and together
with its whole row (the error of the sum that the row is divided by). The second is a factor of the weighted sum; of the
first, only what moves the sum away from its own value counts. docs/bounds.md has the formulas.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.bounded import Bound, Bounded, Bounds, Rounding
from conformance.bounds.query_key_norm import bounded_norm
from conformance.bounds.rotary import rotated
from mha_core.call.masks import additive_bias
from mha_core.heads import merge_heads, split_heads
from mha_core.reference.forward import PROJECTED, cap, dropout_factor
from mha_core.reference.state import State

SCALE_ROUNDINGS = 4
"""Roundings that a scale can cost, wherever an implementation applies it: to q, to k, to both, to the scores."""

TANH_ULPS = 8.0
"""Error of one tanh in units in the last place; the rational approximations of the frameworks stay below."""

QUOTIENT_ROUNDINGS = 2
"""Roundings of one weight after its exponential: the reciprocal of the sum, and the product with it."""

SMALL_GROWTH = 1.0
"""Largest error of a score whose effect on a weight is bounded by expm1; above it, `_extremes` bounds the weights."""

WEIGHTLESS = -1000.0
"""A score that is less than the largest by so much has the weight 0 in every dtype: a bias of finfo.min, for one."""


class Growth(NamedTuple):
    """Bounds on the relative errors of the attention weights: of each weight by itself, and of a whole row together.

    Attributes:
        own: (B, H, Lq, Lk). A weight may be wrong by a factor of up to e^own. This covers the errors of its score, of
            subtracting the maximum, of the product with log2(e) if the base is 2, and of the exponential.
        shared: (B, H, Lq, 1). A row may be wrong by a common factor of up to 1 + shared. This covers the error of the
            row's sum. For layers that compute exp(score - logsumexp), it also covers the error of logsumexp.
    """

    own: NDArray
    shared: NDArray


def growth(b: Bounds) -> Growth:
    """Return the bounds on the weights' relative errors, due to the errors of scores and the softmax's arithmetic."""
    return growth_of(b.rounding, b["scores"], b.state["allowed"])


def growth_of(r: Rounding, scores: Bounded, allowed: NDArray) -> Growth:
    """Return the Growth of a softmax of any scores over their last axis."""
    p, key_len = r.precision, scores.v.shape[-1]
    blocks = p.key_blocks(key_len)
    highest = _row_maximum(scores.v, allowed)
    distance = np.where(allowed, np.abs(scores.v - highest), 0.0)
    least = np.where(allowed, scores.v - scores.e, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    may_be_largest = allowed & ~(scores.v + scores.e < least)  # as they are computed
    furthest = np.where(may_be_largest, scores.e, 0.0).max(axis=-1, keepdims=True, initial=0.0)
    distance += scores.e + furthest
    # The maximum subtracted, log2(e) rounded, and times log2(e): before the maximum is subtracted, or after.
    steps = (distance, distance, np.maximum(distance, np.abs(scores.v)))
    exponent = r.add(*(r.unit(p.us) * step for step in steps)) * (2.0 if blocks > 1 else 1.0)
    exponential = -blocks * np.log1p(-2.0 * p.exp_ulps * r.unit(p.us))
    own = np.where(allowed, np.minimum(r.add(scores.e, exponent, exponential), 1e300), 0.0)
    own = np.where(scores.v - highest + own < WEIGHTLESS, 0.0, own)
    n = max(key_len, 1)
    # The maximum is rounded twice: times log2(e), and plus the logarithm, which is at most log n.
    logsumexp = 2.0 * r.unit(p.us) * (np.abs(highest) + furthest) + (1.0 + 2.0 * p.exp_ulps) * p.us * np.log(n)
    return Growth(own, r.gamma(n + 2 * blocks, p.us) + np.expm1(np.minimum(logsumexp, 1.0)))


def _row_maximum(scores: NDArray, allowed: NDArray) -> NDArray:
    highest = np.where(allowed, scores, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    return np.where(np.isneginf(highest), 0.0, highest)


def _extremes(r: Rounding, scores: NDArray, allowed: NDArray, own: NDArray) -> tuple[NDArray, NDArray]:
    """The smallest and largest value of each weight, (B, H, Lq, Lk), if any score may be off by `own`."""
    distance = np.where(allowed, scores - _row_maximum(scores, allowed), -np.inf)
    least = np.exp(distance - own - _logsumexp(distance + own))
    most = np.exp(distance + own - _logsumexp(distance - own))
    return least, np.minimum(most, r.within(1.0, 1.0))


def _logsumexp(x: NDArray) -> NDArray:
    highest = x.max(axis=-1, keepdims=True, initial=-np.inf)
    highest = np.where(np.isneginf(highest), 0.0, highest)
    return highest + np.log(np.exp(x - highest).sum(axis=-1, keepdims=True))


def weights(b: Bounds) -> Bounded:
    """(B, H, Lq, Lk)."""
    state = b.state
    return weights_of(b.rounding, state["weights"], state["scores"], state["allowed"], b.once(growth))


def weights_of(r: Rounding, right: NDArray, scores: NDArray, allowed: NDArray, errors: Growth) -> Bounded:
    """Return the exact weights `right` as a Bounded, whose error bounds follow from the relative `errors`."""
    own, shared = errors
    up, down = np.exp(own), np.exp(-own)
    most = (right * up).sum(axis=-1, keepdims=True)
    least = (right * down).sum(axis=-1, keepdims=True)
    rho = shared + _own_roundings(r, right.shape[-1])
    upper = right * up * (1.0 + rho) / np.where(least > 0.0, least, 1.0)
    lower = right * down * (1.0 - rho) / np.where(most > 0.0, most, 1.0)
    e = np.maximum(upper - right, right - lower)
    if (own > SMALL_GROWTH).any():
        least, most = _extremes(r, scores, allowed, own)
        extreme = np.maximum(most * (1.0 + rho) - right, right - least * (1.0 - rho))
        e = np.where(_any_key(own), np.where(allowed, extreme, 0.0), e)
    # Before it is flushed, an exponential is at least `lower`, or `least`. One that is lost was less than lost_weight,
    # so the weight is less than e + lost_weight; and a 0 is stored as it is, so nothing is lost a second time.
    return r.store(Bounded(right, e), r.precision.lost_weight)


def _any_key(own: NDArray) -> NDArray:
    """Bool (B, H, Lq, 1): the rows with errors so large that any key may have the largest weight."""
    return (own > SMALL_GROWTH).any(axis=-1, keepdims=True)


def heads(b: Bounds) -> Bounded:
    """(B, H, Lq, dv): the error bound of the output o of each head, weights @ values.

    Weights are normalized to sum 1. So an error of one weight j moves o by the error times |v_j - o|. A relative error
    that all weights of a row have in common moves o by the error times |o|.
    """
    state, r = b.state, b.rounding
    values = b.heads_of("values")
    if state.inputs.dropout_keep is not None:
        return r.product(b["kept_weights"], values, state["heads"])
    weights, (own, shared) = b["weights"], b.once(growth)
    least = (weights.v * np.exp(-own)).sum(axis=-1, keepdims=True)
    share = weights.v * np.expm1(own) / np.where(least > 0.0, least, 1.0)
    if (own > SMALL_GROWTH).any():
        most = np.where(state["allowed"], _extremes(r, state["scores"], state["allowed"], own)[1], 0.0)
        share = np.where(_any_key(own), most, share)
    spread = values.v[:, :, None] - state["heads"][:, :, :, None]  # (B, H, Lq, Lk, dv)
    moved = r.carried(share[:, :, :, None, :], spread)[:, :, :, 0]
    if r.probabilistic:
        # A wrong scale, or query, moves a row's scores together: up above their mean, and down below it.
        mean = (weights.v * state["scores"]).sum(axis=-1, keepdims=True, where=state["allowed"])
        tilted = np.where(state["scores"] < mean, -share, share)
        moved = np.maximum(moved, np.abs(tilted[:, :, :, None, :] @ spread)[:, :, :, 0])
    # Whatever the weights, a head lies between the smallest and largest value that it may attend to.
    furthest = np.where(state["allowed"][..., None], np.abs(spread), 0.0).max(axis=3, initial=0.0)
    moved = np.minimum(moved, r.within(furthest, 2.0 * furthest))
    factor = shared * (np.abs(state["heads"]) + moved)
    rounded = _own_roundings(r, state.sizes.key_len) + 2.0 * r.unit(r.precision.u)
    stored = Bounded(weights.v, rounded * weights.most + r.precision.lost_weight)
    return r.store(Bounded(state["heads"], r.add(moved, factor, r.product(stored, values).e)))


def least(r: Rounding, state: State) -> dict[str, NDArray]:
    """Return lower limits of the error bounds of "weights" and "heads", in a hundredth of the time of the bounds.

    The limits cover only roundings of scores, row sums, weights and the weighted sum. Where a bound adds squares of a
    few errors, the limit is the largest one. Where it adds squares for n keys, the limit is the errors' sum / sqrt(n).
    """
    p, weights, heads = r.precision, state["weights"], state["heads"]
    n, keys = max(weights.shape[-1], 1), state["allowed"]
    add = np.maximum if r.probabilistic else np.add
    spread = 1.0 / np.sqrt(n) if r.probabilistic else 1.0
    rounded = _own_roundings(r, n)
    shared = r.gamma(n + 2 * p.key_blocks(n), p.us) + (1.0 + 2.0 * p.exp_ulps) * p.us * np.log(n)
    own = 2.0 * p.exp_ulps * r.unit(p.us)
    if state.config.score == "scaled_dot" and state.config.softcap is None:
        queries, across = np.abs(state["queries"]), np.abs(state.heads_of("keys")).swapaxes(-1, -2)
        own = add(own, r.gamma(queries.shape[-1], p.ua) * abs(state.config.softmax_scale) * (queries @ across))
    share, sizes = weights * np.minimum(own, SMALL_GROWTH), np.abs(state.heads_of("values"))
    moved = np.maximum(share @ sizes - share.sum(axis=-1, keepdims=True) * np.abs(heads), 0.0)
    summed = add(r.gamma(n, p.ua), spread * (rounded + 2.0 * r.unit(p.u)))
    exact = ~keys | (keys.sum(axis=-1, keepdims=True) == 1)
    return {
        "weights": np.where(exact, 0.0, np.maximum((shared + rounded) * weights, p.lost_weight)),
        "heads": add(add(summed * (weights @ sizes), spread * moved), shared * np.abs(heads)),
    }


def _own_roundings(r: Rounding, key_len: int) -> float:
    """The relative error of a weight after its exponential: its quotient, and the rescaling of an online softmax."""
    blocks = r.precision.key_blocks(key_len)
    return float(r.gamma(QUOTIENT_ROUNDINGS + 2 * blocks, r.precision.us))


# Projections and heads ------------------------------------------------------------------------------


def exact(step: str, b: Bounds) -> Bounded:
    """Return the result of `step`, which does no arithmetic, with an error bound of 0."""
    return Bounded.exact(b.state[step])


def project(projection: str, b: Bounds) -> Bounded:
    """(B, L, in) -> (B, L, out): the error bound of x W^T + b. It holds whether b is added first or last."""
    x: Bounded = b[PROJECTED[projection][0]]
    if not b.state.config.projections:
        return x
    weight, bias = b.state.parameters[f"{projection}.weight"], b.state.parameters.get(f"{projection}.bias")
    return affine(b.rounding, x, Bounded.exact(weight.T), None if bias is None else Bounded.exact(bias))


def affine(r: Rounding, x: Bounded, weight: Bounded, bias: Bounded | None) -> Bounded:
    """Return x @ weight + bias with an error bound that holds whether the bias is added first or last."""
    projected = r.product(x, weight)
    if bias is None:
        return projected
    as_first_term = r.gamma(x.v.shape[-1] + 1, r.precision.ua) * np.abs(bias.v)
    return r.plus(projected, Bounded(bias.v, r.add(bias.e, as_first_term)))


def split(step: str, num_heads: str, b: Bounds) -> Bounded:
    """(B, L, H * d) -> (B, H, L, d): the error bound of `step`, split into heads; `num_heads` names a config field."""
    return b[step].map(partial(split_heads, num_heads=getattr(b.state.config, num_heads)))


def turned(side: str, b: Bounds) -> Bounded:
    """(B, heads, L, d): the error bound of `side`, "queries" or "keys", after the rotation by positions."""
    x: Bounded = b[f"normed_{side}"]
    return x if b.state.config.rotary is None else rotated(b, x, side)


def normed(order: str, name: str, step: str, b: Bounds) -> Bounded:
    """(B, heads, L, d): the error bound of the norm `name` of the result of `step`.

    If the layer has no norm in this `order` ("before" or "after" the rotation), return the error bound of `step`.
    """
    settings, x = b.state.config.query_key_norm, b[step]
    return x if settings is None or settings.order != order else bounded_norm(b, name, x, settings).result


def after_past(step: str, new_step: str, b: Bounds) -> Bounded:
    """(B, G, Lk, d or dv): `step` (keys or values) with error bounds: 0 for past keys, those of `new_step` for new."""
    new = b[new_step]
    past = np.zeros((*new.e.shape[:2], b.state.sizes.past_len, new.e.shape[3]))
    return Bounded(b.state[step], np.concatenate([past, new.e], axis=2))


# Scores ---------------------------------------------------------------------------------------------


def additive_hidden(b: Bounds) -> Bounded | None:
    """(B, H, Lq, Lk, S): the error bound of tanh(A q + C k). The slope of tanh is at most 1, so no error grows."""
    hidden = b.state["additive_hidden"]
    if hidden is None:
        return None
    r = b.rounding
    from_query = r.product(b["queries"], Bounded.exact(b.state.parameters["score.query.weight"].T))
    from_key = r.product(b.heads_of("keys"), Bounded.exact(b.state.parameters["score.key.weight"].T))
    inside = r.plus(
        from_query.map(lambda array: array[:, :, :, None, :]), from_key.map(lambda array: array[:, :, None, :, :])
    )
    return r.store(Bounded(hidden, r.add(inside.e, 2.0 * TANH_ULPS * r.unit(r.precision.u) * np.abs(hidden))))


def similarity(b: Bounds) -> Bounded:
    """(B, H, Lq, Lk): the error bound of the score function with its scale."""
    if b.state.config.score == "additive":
        vector = Bounded.exact(b.state.parameters["score.vector"][:, None])
        return b.rounding.product(b["additive_hidden"], vector).map(lambda array: array[..., 0])
    return scaled_product(b, b["queries"], b.heads_of("keys").T)


def scaled_product(bounds: Bounds, a: Bounded, b: Bounded) -> Bounded:
    """Return a @ b * scale in the storage dtype. The error bound holds whether a, b or the product is scaled."""
    r, scale = bounds.rounding, bounds.state.config.softmax_scale
    scaled = Bounded(a.v * scale, a.e * abs(scale))
    plain = r.product(scaled, b)
    roundings = 0 if scale == 1.0 else SCALE_ROUNDINGS
    anywhere = r.gamma(roundings, r.precision.u) * (scaled.most @ b.most)
    # Scaling a factor may flush it to 0; the error is then tau times the other factor, which was not scaled.
    flushed = (
        r.precision.tau * max(1.0, abs(scale)) ** 0.5 * (a.most.sum(-1)[..., :, None] + b.most.sum(-2)[..., None, :])
    )
    return r.store(Bounded(plain.v, r.add(plain.e, anywhere, 0.0 if scale == 1.0 else flushed)))


def capped(b: Bounds) -> Bounded:
    """(B, H, Lq, Lk): the error bound of c tanh(x / c), for the scores x and the softcap c."""
    state, r, x = b.state, b.rounding, b["similarity"]
    softcap = state.config.softcap
    if softcap is None:
        return x
    within_cap = cap(state, x.v)
    # The product is rounded after the tanh, and c itself may be.
    own = 2.0 * (TANH_ULPS + 1.0) * r.unit(r.precision.u) * np.abs(within_cap)
    moved = r.moved_through(lambda array: cap(state, array), Bounded(x.v, before_cap(r, x)))
    return r.store(Bounded(within_cap, r.add(moved, own, max(1.0, softcap) * r.precision.tau)))


def before_cap(r: Rounding, x: Bounded) -> NDArray:
    """Return c times the error bound of x / c, the argument of tanh. The softcap c may be rounded, too."""
    return r.add(x.e, 2.0 * r.unit(r.precision.u) * x.most)


def scores(b: Bounds) -> Bounded:
    """(B, H, Lq, Lk): the error bound of the capped scores plus the additive bias; excluded keys don't count."""
    state, found = b.state, b["capped"]
    if state.inputs.mask.bias is not None:
        found = b.rounding.plus(found, Bounded.exact(additive_bias(state.inputs.mask)))
    return Bounded(state["scores"], np.where(state["allowed"], found.e, 0.0))


# Weights and output ---------------------------------------------------------------------------------


def kept(step: str, b: Bounds) -> Bounded:
    """(B, H, Lq, Lk): the error bound of `step` after dropout."""
    bound: Bounded = b[step]
    return bound if b.state.inputs.dropout_keep is None else b.rounding.times(bound, dropout_factor(b.state))


def merged(step: str, b: Bounds) -> Bounded:
    """(B, heads, L, d) -> (B, L, heads * d): the error bound of `step` with its heads merged."""
    return b[step].map(merge_heads)


def output(b: Bounds) -> Bounded:
    """(B, Lq, Do)."""
    return Bounded(b.state["output"], project("out_proj", b).e)


FORWARD_BOUNDS: Mapping[str, Bound] = {
    "query_inputs": partial(exact, "query_inputs"),
    "key_inputs": partial(exact, "key_inputs"),
    "value_inputs": partial(exact, "value_inputs"),
    "q_proj": partial(project, "q_proj"),
    "k_proj": partial(project, "k_proj"),
    "v_proj": partial(project, "v_proj"),
    "projected_queries": partial(split, "q_proj", "num_heads"),
    "projected_keys": partial(split, "k_proj", "num_kv_heads"),
    "projected_values": partial(split, "v_proj", "num_kv_heads"),
    "normed_queries": partial(normed, "before", "q_norm", "projected_queries"),
    "normed_keys": partial(normed, "before", "k_norm", "projected_keys"),
    "rotated_queries": partial(turned, "queries"),
    "rotated_keys": partial(turned, "keys"),
    "queries": partial(normed, "after", "q_norm", "rotated_queries"),
    "new_keys": partial(normed, "after", "k_norm", "rotated_keys"),
    "keys": partial(after_past, "keys", "new_keys"),
    "values": partial(after_past, "values", "projected_values"),
    "additive_hidden": additive_hidden,
    "similarity": similarity,
    "capped": capped,
    "scores": scores,
    "weights": weights,
    "kept_weights": partial(kept, "weights"),
    "heads": heads,
    "merged": partial(merged, "heads"),
    "output": output,
}

WITHOUT_BOUND: Mapping[str, str] = {
    "allowed": "true or false, which no rounding changes",
    "padding": "true or false, which no rounding changes",
    "rotary_tables": "given, or off by so little that the turn bounds it",
    "unscaled": "an implementation may apply the scale before it, to queries or keys: `similarity` bounds both",
}
"""The forward steps without a bound of their own -> why they have none."""
