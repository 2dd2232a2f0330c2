"""Functions of a step's numbers that no layer should have there: activations, normalisations, coarse numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import erf

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.candidates.steps import PLACES, function_on
from conformance.zoo.bug import Bug
from conformance.zoo.forward.precision import to_tf32
from mha_core.dtypes import round_to
from mha_core.reference.state import State

Function = Callable[[NDArray], NDArray]


def _sigmoid(x: NDArray) -> NDArray:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu_tanh(x: NDArray) -> NDArray:
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def _erf(x: NDArray) -> NDArray:
    found: NDArray = np.vectorize(erf, otypes=[float])(x)
    return found


def _softmax(x: NDArray) -> NDArray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    found: NDArray = powers / powers.sum(axis=-1, keepdims=True)
    return found


def _over(x: NDArray, by: NDArray) -> NDArray:
    return np.where(by == 0.0, 0.0, x / np.where(by == 0.0, 1.0, by))


def _layer_norm(eps: float) -> Function:
    def function(x: NDArray) -> NDArray:
        centred = x - x.mean(axis=-1, keepdims=True)
        return _over(centred, np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps))

    return function


def _rms_norm(eps: float) -> Function:
    return lambda x: _over(x, np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps))


def _l2_norm(eps: float) -> Function:
    return lambda x: _over(x, np.maximum(np.sqrt((x * x).sum(axis=-1, keepdims=True)), eps))


ACTIVATIONS: dict[str, tuple[str, Function]] = {
    "relu": ("ReLU is applied: negative numbers become 0", lambda x: np.maximum(x, 0.0)),
    "leaky-relu": ("leaky ReLU is applied, with a slope of 0.01", lambda x: np.where(x > 0.0, x, 0.01 * x)),
    "tanh": ("tanh is applied", np.tanh),
    "sigmoid": ("the logistic function is applied", _sigmoid),
    "silu": ("SiLU is applied", lambda x: x * _sigmoid(x)),
    "gelu": ("GELU is applied", lambda x: 0.5 * x * (1.0 + _erf(x / np.sqrt(2.0)))),
    "gelu-tanh": ("GELU by tanh is applied", _gelu_tanh),
    "softplus": ("softplus is applied", lambda x: np.logaddexp(0.0, x)),
    "elu": ("ELU is applied", lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0)))),
    "exp": ("exp is applied", np.exp),
    "square": ("numbers are squared", lambda x: x * x),
    "cube": ("numbers are cubed", lambda x: x**3),
    "absolute": ("signs are lost", np.abs),
    "sign": ("only signs are left", np.sign),
    "sin": ("the sine is applied", np.sin),
    "softsign": ("x / (1 + |x|) is applied", lambda x: x / (1.0 + np.abs(x))),
    "root": ("square roots are taken, with the sign", lambda x: np.sign(x) * np.sqrt(np.abs(x))),
    "rounded": ("numbers are rounded to integers", np.round),
    "cut": ("fractions are cut off", np.trunc),
    "floor": ("numbers are rounded down to integers", np.floor),
}
"""Name -> (words, function of each number)."""

NORMS: dict[str, tuple[str, Function]] = {
    **{
        f"layer-norm-{eps:g}": (f"LayerNorm over the channels, eps {eps:g}", _layer_norm(eps))
        for eps in (0.0, 1e-5, 1e-6, 1e-12)
    },
    **{
        f"rms-norm-{eps:g}": (f"RMS norm over the channels, eps {eps:g}", _rms_norm(eps))
        for eps in (0.0, 1e-5, 1e-6, 1e-8)
    },
    **{f"l2-norm-{eps:g}": (f"divided by their length, at least {eps:g}", _l2_norm(eps)) for eps in (0.0, 1e-12)},
    "centred": ("their mean over the channels is subtracted", lambda x: x - x.mean(axis=-1, keepdims=True)),
    "softmax": ("a softmax over the channels", _softmax),
    "over-highest": (
        "divided by their highest magnitude",
        lambda x: _over(x, np.abs(x).max(axis=-1, keepdims=True, initial=0.0)),
    ),
    "over-sum": ("divided by their sum over the channels", lambda x: _over(x, x.sum(axis=-1, keepdims=True))),
    "mean": (
        "their mean over the channels in place of each",
        lambda x: np.broadcast_to(x.mean(axis=-1, keepdims=True), x.shape),
    ),
    "cumulated": ("cumulated over the channels", lambda x: x.cumsum(axis=-1)),
    "plus-next": ("the next channel is added to each", lambda x: x + np.roll(x, -1, axis=-1)),
}
"""Name -> (words, function of the last axis)."""

FORMATS = ("float32", "tf32", "bfloat16", "float16")


def narrowed(form: str) -> Function:
    if form == "tf32":
        return to_tf32
    return lambda x: round_to(x, form).astype(np.float64)


STEPS = ("value_inputs", "v_proj", "new_values", "heads", "merged", "output")


def functions_otherwise() -> Iterator[Bug]:
    """Each function on each step."""
    for step in STEPS:
        for slug, (words, function) in {**ACTIVATIONS, **NORMS}.items():
            yield function_on(step, slug, _applied(function), words)
        for form in FORMATS:
            yield function_on(step, f"in-{form}", _applied(narrowed(form)), f"numbers are rounded to {form}")
    for slug, (words, along) in OVER_KEYS.items():
        for step in ("value_inputs", "v_proj", "new_values"):
            yield function_on(step, slug, _along(along, PLACES[step].axes.index("key")), words)


OVER_KEYS: dict[str, tuple[str, Callable[[NDArray, int], NDArray]]] = {
    "mean-over-keys": (
        "the mean over all keys in place of each",
        lambda x, axis: np.broadcast_to(x.mean(axis=axis, keepdims=True), x.shape),
    ),
    "cumulated-over-keys": ("cumulated over the keys", lambda x, axis: x.cumsum(axis=axis)),
    "centred-over-keys": (
        "their mean over the keys is subtracted",
        lambda x, axis: x - x.mean(axis=axis, keepdims=True),
    ),
    "highest-over-keys": (
        "the highest number of all keys in place of each",
        lambda x, axis: np.broadcast_to(x.max(axis=axis, keepdims=True), x.shape),
    ),
    "plus-next-key": ("the next key's are added to each", lambda x, axis: x + np.roll(x, -1, axis=axis)),
    "plus-previous-key": ("the previous key's are added to each", lambda x, axis: x + np.roll(x, 1, axis=axis)),
}
"""Name -> (words, function of an array and of the axis of its keys)."""


def _applied(function: Function) -> Callable[[State, NDArray], NDArray]:
    def change(state: State, array: NDArray) -> NDArray:
        with any_numbers:
            return function(array)

    return change


def _along(function: Callable[[NDArray, int], NDArray], axis: int) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: function(array, axis)
