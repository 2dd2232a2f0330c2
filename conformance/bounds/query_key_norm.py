"""The bound of the query-key norm, forward and backward.

With the error e of the input x, the mean square is off by mean(2 |x| e + e^2) and the roundings of its sum, and the
factor 1 / sqrt(mean square + eps) by what the slope of the root makes of that. All errors of a mean are added up as if
they had one sign: they came through one factor, so they move together.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.bounded import Bounded, Bounds, Rounding
from mha_core.parts.query_key_norm import QueryKeyNorm, by_head, mean_axes, norm, norm_back, to_parameter

ROOT_ULPS = 4.0
"""Error of 1 / sqrt(x) in units of its last place, as one operation or as two."""


class BoundedNorm(NamedTuple):
    """The steps of a norm with their error bounds: unit = x * factor, result = unit * scale + bias.

    factor (B, heads or 1, L, 1), unit and result (B, heads, L, d). scale: offset + weight; None without weights.
    """

    factor: Bounded
    unit: Bounded
    scale: Bounded | None
    result: Bounded


def bounded_norm(b: Bounds, name: str, x: Bounded, settings: QueryKeyNorm) -> BoundedNorm:
    """Return the BoundedNorm of x for the norm `name` ("q_norm" or "k_norm"): its steps with their error bounds."""
    r, axes = b.rounding, mean_axes(settings)
    weight, bias = (b.state.parameters.get(f"{name}.{kind}") for kind in ("weight", "bias"))
    exact = norm(x.v, settings, weight, bias)
    us, n = r.precision.us, int(np.prod([x.v.shape[axis] for axis in axes]))
    centred = x
    if settings.kind == "layer":
        mean = Bounded(x.v.mean(axis=axes, keepdims=True), _mean_error(r, x, axes))
        centred = Bounded(x.v - mean.v, r.add(x.e, mean.e, r.unit(us) * (x.most + np.abs(mean.v))))
    square = Bounded(centred.v**2, 2.0 * np.abs(centred.v) * centred.e + centred.e**2)
    total = square.v.mean(axis=axes, keepdims=True) + settings.eps
    off = r.add(_mean_error(r, square, axes), 2.0 * r.unit(us) * total)
    # The computed mean square is never negative: below, eps alone is under the root.
    highest = np.maximum(total - off, settings.eps * (1.0 - 4.0 * us)) ** -0.5
    moved = np.maximum(highest - exact.factor, exact.factor - (total + off) ** -0.5)
    factor = Bounded(exact.factor, r.add(moved, 2.0 * ROOT_ULPS * r.unit(us) * exact.factor))
    unit = r.store(_times(r, centred, factor, exact.unit, us))
    unit = Bounded(unit.v, np.minimum(unit.e, 2.0 * np.sqrt(n)))  # no element is larger than the root of n
    if exact.scale is None:
        return BoundedNorm(factor, unit, None, unit)
    rounded = r.unit(r.precision.u) * np.abs(exact.scale) if settings.offset else np.zeros(exact.scale.shape)
    scale = Bounded(exact.scale, rounded)
    result = r.elementwise(scale, unit)
    if bias is not None:
        result = r.plus(result, Bounded.exact(by_head(bias, x.v.shape)))
    return BoundedNorm(factor, unit, scale, Bounded(exact.result, result.e))


class NormBounds(NamedTuple):
    """The error bounds of the gradients of a norm: of its input, and of its weight and bias (None without them)."""

    x: Bounded
    weight: Bounded | None
    bias: Bounded | None


def back_through(b: Bounds, name: str, x: Bounded, gradient: Bounded, settings: QueryKeyNorm) -> NormBounds:
    """Return the NormBounds of the norm `name` of x: the bounds of its gradients, from the `gradient` of its result."""
    r, axes, us = b.rounding, mean_axes(settings), b.rounding.precision.us
    steps = bounded_norm(b, name, x, settings)
    weight, bias = (b.state.parameters.get(f"{name}.{kind}") for kind in ("weight", "bias"))
    exact = norm_back(gradient.v, norm(x.v, settings, weight, bias), settings)
    through = gradient if steps.scale is None else r.elementwise(gradient, steps.scale)
    along = _times(r, through, steps.unit, through.v * steps.unit.v, us)
    mean = Bounded(along.v.mean(axis=axes, keepdims=True), _mean_error(r, along, axes))
    back = _times(r, steps.unit, mean, steps.unit.v * mean.v, us)
    inside = Bounded(through.v - back.v, r.add(through.e, back.e, r.unit(us) * (through.most + back.most)))
    if settings.kind == "layer":
        # The mean of `back` is 0, but for its rounding.
        shift = r.add(_mean_error(r, through, axes), _mean_error(r, back, axes))
        centre = through.v.mean(axis=axes, keepdims=True)
        inside = Bounded(inside.v - centre, r.add(inside.e, shift, r.unit(us) * (inside.most + np.abs(centre) + shift)))
    of_x = r.store(_times(r, inside, steps.factor, exact.x, us))
    if steps.scale is None:
        return NormBounds(of_x, None, None)
    of_weight = _to_parameter(r, r.elementwise(gradient, steps.unit), settings)
    return NormBounds(of_x, of_weight, _to_parameter(r, gradient, settings) if settings.bias else None)


def _mean_error(r: Rounding, x: Bounded, axes: tuple[int, ...]) -> NDArray:
    """The error of a mean: that of its terms, which move together, and that of the sum and the division."""
    n = int(np.prod([x.v.shape[axis] for axis in axes]))
    carried = x.e.mean(axis=axes, keepdims=True)
    return r.add(carried, r.gamma(n + 3, r.precision.us) * x.most.mean(axis=axes, keepdims=True))


def _times(r: Rounding, a: Bounded, b: Bounded, v: NDArray, unit: float) -> Bounded:
    """A * b, whose exact product is v, rounded once in the format of this unit roundoff; it is not stored."""
    e = r.add(np.abs(a.v) * b.e, np.abs(b.v) * a.e, a.e * b.e, r.unit(unit) * a.most * b.most)
    return Bounded(v, e)


def _to_parameter(r: Rounding, x: Bounded, settings: QueryKeyNorm) -> Bounded:
    """(B, heads, L, d) -> (d,) or (heads * d,): the sum over everything that shares one number of a weight."""
    axes = (0, 1, 2) if settings.weight == "shared" else (0, 2)
    return Bounded(to_parameter(x.v, settings), r.total(x, axes).e.reshape(-1))
