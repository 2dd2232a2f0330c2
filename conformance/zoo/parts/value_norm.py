"""Value norm and value scale done wrong, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import GRADIENTS
from conformance.zoo.rows import Arrays, Steps, Table, after, entries, of_past, part
from mha_core.parts.query_key_norm import norm
from mha_core.parts.value_norm import norm_of, norm_values
from mha_core.reference.state import State

BEGINS = {"value_norm_eps": ("value-norm-",), "value_scale": ("value-scale-",)}


has_norm, eps_of = part("value_norm_eps", float)
has_scale, scale_of = part("value_scale", float)


# The norm -----------------------------------------------------------------------------------------

Divide = Callable[[NDArray, float], NDArray]
"""(values (B, G, L, dv), eps) -> the wrong norm of them."""


def _normed(divide: Divide) -> Steps:
    return after("normed_values", lambda state, right: divide(state["projected_values"], eps_of(state)), has_norm)


def _square(x: NDArray, axes: int | tuple[int, ...] = 3) -> NDArray:
    return np.square(x).mean(axis=axes, keepdims=True)


def _centred(x: NDArray, eps: float) -> NDArray:
    return norm_values(x - x.mean(axis=3, keepdims=True), eps)


def _in_float32(x: NDArray, eps: float) -> NDArray:
    return norm_values(x.astype(np.float32).astype(np.float64), eps).astype(np.float32).astype(np.float64)


def _normed_again(state: State, right: NDArray) -> NDArray:
    return norm_values(right, eps_of(state))


def _of_scaled(state: State, right: NDArray) -> NDArray:
    """Scaled first, and then normed: the scale is lost, but for eps."""
    return norm_values(scale_of(state) * state["projected_values"], eps_of(state))


_row = Table("values", "Divide each new value by sqrt(mean(x ** 2) + eps), the mean over the channels of its head.")
_once = Table("values", "Norm and scale new values once, before they enter the cache; keys and the past stay.")

NORM = (
    _row("value-norm-ignored", "Values are not normed.", _normed(lambda x, eps: x)),
    _row(
        "value-norm-eps-outside",
        "eps is added to the root, not under it.",
        _normed(lambda x, eps: x / (np.sqrt(_square(x)) + eps)),
    ),
    _row("value-norm-eps-missing", "eps is left out.", _normed(lambda x, eps: norm_values(x, 1e-30))),
    _row(
        "value-norm-eps-as-floor",
        "eps is the least that the mean square can be, and is not added.",
        _normed(lambda x, eps: x / np.sqrt(np.maximum(_square(x), eps))),
    ),
    _row(
        "value-norm-eps-default", "eps is 1e-6 whatever the config says.", _normed(lambda x, eps: norm_values(x, 1e-6))
    ),
    _row("value-norm-layer", "The mean is taken away first.", _normed(_centred)),
    _row(
        "value-norm-over-heads",
        "The mean is over all heads of a token.",
        _normed(lambda x, eps: x / np.sqrt(_square(x, (1, 3)) + eps)),
    ),
    _row(
        "value-norm-over-positions",
        "The mean is over positions.",
        _normed(lambda x, eps: x / np.sqrt(_square(x, 2) + eps)),
    ),
    _row(
        "value-norm-by-length",
        "Values are divided by their length: by the root of the sum, not of the mean.",
        _normed(lambda x, eps: x / np.sqrt(np.square(x).sum(axis=3, keepdims=True) + eps)),
    ),
    _row(
        "value-norm-square-missing",
        "Values are divided by their mean square, without the root.",
        _normed(lambda x, eps: x / (_square(x) + eps)),
    ),
    _row("value-norm-in-float32", "The norm is computed in float32 in a float64 layer.", _normed(_in_float32)),
    _once(
        "value-norm-of-keys-too",
        "Keys are normed as values are.",
        after("new_keys", _normed_again, has_norm),
        stage="keys",
    ),
    _once(
        "value-norm-of-keys-instead",
        "Keys are normed in place of values.",
        after("new_keys", _normed_again, has_norm),
        _normed(lambda x, eps: x),
        stage="keys",
        seen_in="kyegomez/MegaVIT#17",
    ),
    _once(
        "value-norm-of-past-again",
        "Values of the past are normed once more.",
        of_past("values", _normed_again, has_norm),
    ),
    _once(
        "value-norm-of-heads",
        "The weighted sums of values are normed, not the values.",
        _normed(lambda x, eps: x),
        after("heads", lambda state, right: norm_values(right, eps_of(state)), has_norm),
    ),
)


# The scale ----------------------------------------------------------------------------------------


def _scaled(factor: Callable[[float], float]) -> Steps:
    return after("new_values", lambda state, right: state["normed_values"] * factor(scale_of(state)), has_scale)


SCALE = (
    _once("value-scale-ignored", "Values are not scaled.", _scaled(lambda scale: 1.0)),
    _once("value-scale-twice", "Values are scaled twice.", _scaled(lambda scale: scale**2)),
    _once("value-scale-inverse", "Values are divided by the scale.", _scaled(lambda scale: 1.0 / scale)),
    _once("value-scale-without-sign", "The sign of the scale is lost.", _scaled(abs)),
    _once(
        "value-scale-before-norm",
        "Values are scaled, and then normed.",
        after("new_values", _of_scaled, lambda state: has_norm(state) and has_scale(state)),
    ),
    _once(
        "value-scale-of-past-again",
        "Values of the past are scaled once more.",
        of_past("values", lambda state, past: scale_of(state) * past, has_scale),
    ),
    _once(
        "value-scale-of-keys-too",
        "Keys are scaled as values are.",
        after("new_keys", lambda state, right: scale_of(state) * right, has_scale),
        stage="keys",
    ),
    _once(
        "value-scale-of-weights",
        "Weights are multiplied by the scale, not values.",
        _scaled(lambda scale: 1.0),
        after("weights", lambda state, right: scale_of(state) * right, has_scale),
    ),
    _once(
        "value-scale-of-heads",
        "The weighted sums are multiplied by the scale, those of the past too, not new values.",
        _scaled(lambda scale: 1.0),
        after("heads", lambda state, right: scale_of(state) * right, has_scale),
    ),
    _once(
        "value-scale-of-output",
        "The output is multiplied by the scale, with its bias, not new values.",
        _scaled(lambda scale: 1.0),
        after("output", lambda state, right: scale_of(state) * right, has_scale),
    ),
)


# Backward -----------------------------------------------------------------------------------------


def _norm_back(change: Callable[[State, NDArray, NDArray], NDArray]) -> Steps:
    """`change(state, gradient of what was normed, values)` in place of the gradient of the values."""
    return after(
        "d_projected_values",
        lambda state, right: change(state, state["d_normed_values"], state["projected_values"]),
        has_norm,
    )


def _without_size(state: State, gradient: NDArray, x: NDArray) -> NDArray:
    steps = norm(x, norm_of(eps_of(state)), None, None)
    return gradient - steps.unit * (gradient * steps.unit).mean(axis=3, keepdims=True)


def _past_scaled(state: State, right: Arrays) -> Arrays:
    is_possible = has_scale(state) and state.sizes.past_len > 0
    return {"past_values": scale_of(state) * right["past_values"]} if is_possible else {}


_row = Table(GRADIENTS, "dx = scale * (dy - xh mean(dy xh)) / sqrt(mean(x ** 2) + eps), of new values alone.")

BACKWARD = (
    _row(
        "gradient-of-value-norm-size-detached",
        "What values are divided by is treated as a constant: the mean term is missing.",
        _norm_back(lambda state, gradient, x: gradient / np.sqrt(_square(x) + eps_of(state))),
    ),
    _row(
        "gradient-of-value-norm-missing",
        "The gradient passes by the norm unchanged.",
        _norm_back(lambda state, gradient, x: gradient),
    ),
    _row(
        "gradient-of-value-norm-detached",
        "No gradient goes through the norm.",
        _norm_back(lambda state, gradient, x: np.zeros_like(gradient)),
    ),
    _row(
        "gradient-of-value-norm-without-size",
        "The gradient is not divided by what the value was divided by.",
        _norm_back(_without_size),
    ),
    _row(
        "gradient-of-value-scale-missing",
        "The gradient is not multiplied by the scale.",
        after("d_normed_values", lambda state, right: state["d_new_values"], has_scale),
    ),
    _row(
        "gradient-of-value-scale-of-past",
        "The gradient of values of the past is multiplied by the scale too.",
        entries("d_inputs", _past_scaled),
    ),
)


BUGS = (*NORM, *SCALE, *BACKWARD)
