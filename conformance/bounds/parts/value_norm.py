"""The bound of value norm and value scale, forward and backward."""

from __future__ import annotations

import numpy as np

from conformance.bounds.bounded import Bounded
from conformance.bounds.parts.query_key_norm import back_through, bounded_norm
from conformance.bounds.steps import Bounds
from mha_core.parts.value_norm import norm_of

SCALE_ROUNDINGS = 2.0
"""Roundings of the scale and of a product with it, beside the one that is stored."""


def normed_values(b: Bounds) -> Bounded:
    """(B, G, Lk - Lp, dv)."""
    x: Bounded = b["projected_values"]
    eps = b.state.config.value_norm_eps
    return x if eps is None else bounded_norm(b, "v_norm", x, norm_of(eps)).result


def d_projected_values(b: Bounds) -> Bounded:
    """(B, G, Lk - Lp, dv)."""
    gradient: Bounded = b["d_normed_values"]
    eps = b.state.config.value_norm_eps
    return gradient if eps is None else back_through(b, "v_norm", b["projected_values"], gradient, norm_of(eps)).x


def scaled_values(step: str, b: Bounds) -> Bounded:
    """(B, G, Lk - Lp, dv): the bound of a step times the value scale."""
    x: Bounded = b[step]
    scale, r = b.state.config.value_scale, b.rounding
    if scale is None:
        return x
    v = x.v * scale
    own = SCALE_ROUNDINGS * r.unit(r.precision.u) * np.abs(v)
    return r.store(Bounded(v, r.add(x.e * abs(scale), own)))
