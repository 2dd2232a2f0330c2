"""The bound of clipped projections, forward and backward.

Forward, an error gets no larger. Backward, the gradient jumps at the limit c: where x is nearer to c than its error, an
implementation may be on either side, so both the whole gradient and 0 are allowed. Where x is exact, as in a layer
without projections, and c is a number of the dtype, x = c is on the side that the definition says: the gradient passes.
"""

from __future__ import annotations

import numpy as np

from conformance.bounds.bounded import Bounded
from conformance.bounds.steps import Bounds
from mha_core.dtypes import round_to
from mha_core.parts.clip_qkv import clip, clip_back

LIMIT_ROUNDINGS = 3.0
"""Roundings of a number that is cut off: of c, and of x / c and the product with c where somebody writes it so."""


def clipped(projection: str, b: Bounds) -> Bounded:
    """(B, L, channels): the bound of a projection, "q_proj", "k_proj" or "v_proj", cut off."""
    x: Bounded = b[projection]
    limit, r = b.state.config.clip_qkv, b.rounding
    if limit is None:
        return x
    made = clip(x.v, limit)
    moved = r.moved_through(lambda array: clip(array, limit), x)
    own = LIMIT_ROUNDINGS * r.unit(r.precision.u) * np.abs(made)
    return Bounded(made, r.add(moved, own, max(1.0, limit) * r.precision.tau))


def through_clip(projection: str, clipped_step: str, b: Bounds) -> Bounded:
    """(B, L, channels): the bound of the gradient of a projection, from that of the step that cuts it off."""
    gradient: Bounded = b[f"d_{clipped_step}"]
    limit, r = b.state.config.clip_qkv, b.rounding
    if limit is None:
        return gradient
    x: Bounded = b[projection]
    held = float(round_to(np.array(limit), r.precision.storage))
    distance = np.abs(x.v)
    is_near = (distance + x.e > min(limit, held)) & (distance - x.e <= max(limit, held))
    is_near &= ~((x.e == 0.0) & (distance == limit) & (held == limit))
    own = LIMIT_ROUNDINGS * r.unit(r.precision.u) * gradient.most
    passes = r.add(gradient.e, own, 2.0 / min(1.0, limit) * r.precision.tau)
    either = r.add(passes, r.within(np.abs(gradient.v), np.abs(gradient.v)))
    sure = np.where(distance <= limit, passes, 0.0)
    return Bounded(clip_back(gradient.v, x.v, limit), np.where(is_near, either, sure))
