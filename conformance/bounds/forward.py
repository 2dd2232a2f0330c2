"""The bound of every forward step, under the step's own name: the errors that it adds to those of the steps before it.

As the step `scores` of the reference reads a State and gives an array, the bound `scores` reads the Bounds and gives a
Bounded. Those of `weights` and `heads` stand in `softmax.py`.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.bounded import Bound, Bounded, Bounds, Rounding
from conformance.bounds.query_key_norm import bounded_norm
from conformance.bounds.rotary import rotated
from conformance.bounds.softmax import heads, weights
from mha_core.call.masks import additive_bias
from mha_core.heads import merge_heads, split_heads
from mha_core.reference.forward import PROJECTED, cap, dropout_factor

SCALE_ROUNDINGS = 4
"""Roundings that a scale can cost, wherever an implementation applies it: to q, to k, to both, to the scores."""

TANH_ULPS = 8.0
"""Error of one tanh in units in the last place; the rational approximations of the frameworks stay below."""

# Projections and heads ------------------------------------------------------------------------------


def exact(step: str, b: Bounds) -> Bounded:
    """Return the bound of a step that changes no number, which is 0 everywhere."""
    return Bounded.exact(b.state[step])


def project(projection: str, b: Bounds) -> Bounded:
    """(B, L, in) -> (B, L, out): the bound of x W^T + b, with the bias as the last or the first term of the sum."""
    x: Bounded = b[PROJECTED[projection][0]]
    if not b.state.config.projections:
        return x
    weight, bias = b.state.parameters[f"{projection}.weight"], b.state.parameters.get(f"{projection}.bias")
    return affine(b.rounding, x, Bounded.exact(weight.T), None if bias is None else Bounded.exact(bias))


def affine(r: Rounding, x: Bounded, weight: Bounded, bias: Bounded | None) -> Bounded:
    """Return the bound of X W + b, with the bias as the last or the first term of the sum."""
    projected = r.product(x, weight)
    if bias is None:
        return projected
    as_first_term = r.gamma(x.v.shape[-1] + 1, r.precision.ua) * np.abs(bias.v)
    return r.plus(projected, Bounded(bias.v, r.add(bias.e, as_first_term)))


def split(step: str, num_heads: str, b: Bounds) -> Bounded:
    """(B, L, H * d) -> (B, H, L, d): the bound of `step`, split into heads; `num_heads` is the config's field."""
    return b[step].map(partial(split_heads, num_heads=getattr(b.state.config, num_heads)))


def turned(side: str, b: Bounds) -> Bounded:
    """(B, heads, L, d): the bound of the rotation of a side, "queries" or "keys"."""
    x: Bounded = b[f"normed_{side}"]
    return x if b.state.config.rotary is None else rotated(b, x, side)


def normed(order: str, name: str, step: str, b: Bounds) -> Bounded:
    """(B, heads, L, d): the bound of `step` after the norm `name`, if the layer norms in this `order`."""
    settings, x = b.state.config.query_key_norm, b[step]
    return x if settings is None or settings.order != order else bounded_norm(b, name, x, settings).result


def after_past(step: str, new_step: str, b: Bounds) -> Bounded:
    """(B, G, Lk, d or dv): the bound of `keys` or `values`: 0 for the past, then the bound of the new ones."""
    new = b[new_step]
    past = np.zeros((*new.e.shape[:2], b.state.sizes.past_len, new.e.shape[3]))
    return Bounded(b.state[step], np.concatenate([past, new.e], axis=2))


# Scores ---------------------------------------------------------------------------------------------


def additive_hidden(b: Bounds) -> Bounded | None:
    """(B, H, Lq, Lk, S): the bound of tanh(A q + C k). Its slope is at most 1, so it makes no error larger."""
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
    """(B, H, Lq, Lk): the bound of the score function with its scale."""
    if b.state.config.score == "additive":
        vector = Bounded.exact(b.state.parameters["score.vector"][:, None])
        return b.rounding.product(b["additive_hidden"], vector).map(lambda array: array[..., 0])
    return scaled_product(b, b["queries"], b.heads_of("keys").T)


def scaled_product(bounds: Bounds, a: Bounded, b: Bounded) -> Bounded:
    """Return the bound of a @ b * scale, rounded to the storage dtype, whether a, b or the product is scaled."""
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
    """(B, H, Lq, Lk): the bound of c tanh(x / c), where x is the similarity."""
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
    """Return the bound on c times the error of x / c, the argument of a softcap's tanh; c may be rounded as well."""
    return r.add(x.e, 2.0 * r.unit(r.precision.u) * x.most)


def scores(b: Bounds) -> Bounded:
    """(B, H, Lq, Lk): the bound of the capped similarity plus the additive bias; excluded keys' scores don't count."""
    state, found = b.state, b["capped"]
    if state.inputs.mask.bias is not None:
        found = b.rounding.plus(found, Bounded.exact(additive_bias(state.inputs.mask)))
    return Bounded(state["scores"], np.where(state["allowed"], found.e, 0.0))


# Weights and output ---------------------------------------------------------------------------------


def kept(step: str, b: Bounds) -> Bounded:
    """(B, H, Lq, Lk): the bound of `step` after dropout."""
    bound: Bounded = b[step]
    return bound if b.state.inputs.dropout_keep is None else b.rounding.times(bound, dropout_factor(b.state))


def merged(step: str, b: Bounds) -> Bounded:
    """(B, heads, L, d) -> (B, L, heads * d): the bound of `step`."""
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
