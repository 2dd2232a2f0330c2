"""The bounds of what stands around attention in a model: activations, norms, products of arrays.

Each takes the rules of rounding and arrays with their bounds, and gives such an array: for every way of computing it
that is in use, with sums in the storage dtype or wider.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.bounded import Bounded, Rounding
from conformance.bounds.forward import TANH_ULPS, growth_of, weights_of
from mha_core.dtypes import round_to

ROOT_ROUNDINGS = 4
"""Roundings of a reciprocal square root: a root and a quotient, or the last step of an approximation."""


def given(r: Rounding, array: NDArray) -> Bounded:
    """Return an array as a Bounded. Its error bound is the error of rounding the array to the storage dtype."""
    own = np.asarray(array, dtype=np.float64)
    if r.precision.storage == "float64":
        return Bounded.exact(own)
    return Bounded(own, np.abs(own - round_to(own, r.precision.storage)))


# Activations ----------------------------------------------------------------------------------------


def _tanh(r: Rounding, x: Bounded) -> Bounded:
    v = np.tanh(x.v)
    return r.store(Bounded(v, r.add(r.moved_through(np.tanh, x), 2.0 * TANH_ULPS * r.unit(r.precision.u) * np.abs(v))))


def _logistic(x: NDArray) -> NDArray:
    small = np.exp(-np.abs(x))
    return np.where(x < 0.0, small, 1.0) / (1.0 + small)


def _sigmoid(r: Rounding, x: Bounded) -> Bounded:
    """1 / (1 + e^-x), or (1 + tanh(x / 2)) / 2, whichever is worse."""
    v, t, u = _logistic(x.v), np.abs(np.tanh(x.v / 2.0)), r.unit(r.precision.u)
    exponential = r.add(2.0 * r.precision.exp_ulps * r.unit(r.precision.us), u)
    by_exp = r.add(v * (1.0 - v) * exponential, 3.0 * u * v)
    by_tanh = r.add(TANH_ULPS * r.unit(r.precision.us) * t, 0.5 * u * t, u * v)
    return r.store(Bounded(v, r.add(r.moved_through(_logistic, x), np.maximum(by_exp, by_tanh))))


def _silu(r: Rounding, x: Bounded) -> Bounded:
    return r.elementwise(x, _sigmoid(r, x))


def _gelu_tanh(r: Rounding, x: Bounded) -> Bounded:
    """The GELU x (1 + tanh z) / 2, which is x / (1 + e^-2z)."""
    scale, cubic = 2.0 * np.sqrt(2.0 / np.pi), 0.044715
    z, slope = scale * (x.v + cubic * x.v**3), scale * (1.0 + 3.0 * cubic * x.most**2)
    return r.elementwise(x, _sigmoid(r, Bounded(z, r.add(slope * x.e, r.gamma(8, r.precision.u) * np.abs(z)))))


def _gelu_quick(r: Rounding, x: Bounded) -> Bounded:
    z = 1.702 * x.v
    return r.elementwise(x, _sigmoid(r, Bounded(z, r.add(1.702 * x.e, r.gamma(2, r.precision.u) * np.abs(z)))))


def _softmax(r: Rounding, x: Bounded) -> Bounded:
    """Over the last axis."""
    allowed = x.v > -np.inf
    v = np.exp(x.v - x.v.max(axis=-1, keepdims=True))
    v /= v.sum(axis=-1, keepdims=True)
    return weights_of(r, v, x.v, allowed, growth_of(r, x, allowed))


Activation = Callable[[Rounding, Bounded], Bounded]

ACTIVATIONS: Mapping[str, Activation] = {
    "identity": Rounding.store,
    "relu": lambda r, x: r.store(Bounded(np.maximum(x.v, 0.0), x.e)),
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "SiLU": _silu,
    "GELU with tanh": _gelu_tanh,
    "GELU with a sigmoid": _gelu_quick,
    "softmax": _softmax,
}

# Norms ----------------------------------------------------------------------------------------------


def norm(
    r: Rounding, x: Bounded, epsilon: float, scale: Bounded | None, bias: Bounded | None, *, centred: bool
) -> Bounded:
    """Return LayerNorm(x) over the last axis (RMSNorm unless `centred`), with a bound for all usual ways to compute it.

    With the mean m, the variance may be mean((x - m)^2) or mean(x^2) - m^2. With s = 1 / sqrt(variance + epsilon),
    (x - m) s may be computed as x s - m s, and the bias may be added to m s first.
    """
    u, n = r.precision.u, x.v.shape[-1]
    squares = r.store(Bounded(x.v**2, r.add(2.0 * np.abs(x.v) * x.e, x.e**2)))
    power = r.times(r.total(squares, (-1,), keepdims=True), 1.0 / n)
    apart = x
    if centred:
        mean = r.times(r.total(x, (-1,), keepdims=True), 1.0 / n)
        difference = x.v - mean.v
        apart = Bounded(difference, r.add(x.e, mean.e, r.gamma(4, u) * (x.most + mean.most)))
        moved = r.add(2.0 * np.abs(mean.v) * mean.e, 2.0 * mean.e**2, 2.0 * r.unit(u) * (power.v + mean.v**2))
        power = Bounded((difference**2).mean(axis=-1, keepdims=True), r.add(power.e, moved))
    found = r.elementwise(apart, _reciprocal_root(r, r.plus(power, Bounded(np.array(epsilon), np.array(u * epsilon)))))
    if scale is not None:
        found = r.elementwise(found, scale)
    if bias is None:
        return found
    return r.plus(found, Bounded(bias.v, r.add(bias.e, r.gamma(2, u) * np.abs(bias.v))))


def _reciprocal_root(r: Rounding, x: Bounded) -> Bounded:
    v = 1.0 / np.sqrt(x.v)
    up, down = 1.0 / np.sqrt(np.maximum(x.v - x.e, 0.0)) - v, v - 1.0 / np.sqrt(x.v + x.e)
    return Bounded(v, r.add(np.maximum(up, down), r.gamma(ROOT_ROUNDINGS, r.precision.u) * v))
