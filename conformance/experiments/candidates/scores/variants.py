"""Variants: other score functions, softcaps and sums with the bias, each a step written anew, without a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.scores.places import OF_ADDITIVE, OF_CAP, OF_SCORES, OF_SUM
from conformance.experiments.changes.elements.values import FUNCTIONS
from conformance.experiments.measured import around
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.call.masks import additive_bias
from mha_core.reference.forward import cap
from mha_core.reference.state import State, Step

# A given scale --------------------------------------------------------------------------------------

GIVEN: dict[str, tuple[str, Callable[[float, float], float]]] = {
    "unsigned": ("without its sign", lambda scale, default: abs(scale)),
    "default": ("not used: the default stands in its place", lambda scale, default: default),
    "squared": ("squared", lambda scale, default: scale * scale),
    "inverted": ("divided by", lambda scale, default: 1.0 / scale),
    "root": (
        "used as its square root, with its sign",
        lambda scale, default: math.copysign(abs(scale) ** 0.5, scale),
    ),
    "and-default": ("used on top of the default", lambda scale, default: scale * default),
    "at-most-1": ("at most 1", lambda scale, default: min(scale, 1.0)),
    "positive": ("0 where it is negative", lambda scale, default: max(scale, 0.0)),
}
"""Name -> (words to be read after "A given scale is", (the scale, 1 / sqrt(head_dim)) -> what is multiplied by)."""


def given_scales() -> Iterator[Bug]:
    for name, (words, other) in GIVEN.items():

        def step(state: State, beneath: Step, other: Callable[[float, float], float] = other) -> NDArray:
            scale = state.config.scale
            if not scale:
                found: NDArray = beneath(state)
                return found
            scaled: NDArray = state["unscaled"] * other(scale, state.config.head_dim**-0.5)
            return scaled

        yield around("similarity", f"given-scale-{name}", step, f"A given scale is {words}.", OF_SCORES)


# The softcap ----------------------------------------------------------------------------------------

Cap = Callable[[State, NDArray, float], NDArray]

CAPS: dict[str, tuple[str, Cap]] = {
    "ignored": ("not bounded: the softcap is ignored", lambda s, x, c: x),
    "clipped": ("clipped at +-c", lambda s, x, c: np.clip(x, -c, c)),
    "clipped-above": ("at most c, and not bounded below", lambda s, x, c: np.minimum(x, c)),
    "without-c": ("tanh(score / c), without the factor c", lambda s, x, c: np.tanh(x / c)),
    "undivided": ("c * tanh(score): the score is not divided by c", lambda s, x, c: c * np.tanh(x)),
    "times": ("c * tanh(score * c)", lambda s, x, c: c * np.tanh(x * c)),
    "inverted": ("tanh(score * c) / c: c and 1 / c are exchanged", lambda s, x, c: np.tanh(x * c) / c),
    "tanh": ("tanh(score), whatever c is", lambda s, x, c: np.tanh(x)),
    "twice": ("bounded twice", lambda s, x, c: c * np.tanh(np.tanh(x / c))),
    "rational": ("c * x / (1 + |x|), x = score / c", lambda s, x, c: x / (1.0 + np.abs(x) / c)),
    "root": ("c * x / sqrt(1 + x^2), x = score / c", lambda s, x, c: x / np.sqrt(1.0 + (x / c) ** 2)),
    "sigmoid": ("c * (2 sigmoid(x) - 1), x = score / c", lambda s, x, c: c * np.tanh(0.5 * x / c)),
    "logistic": ("c * sigmoid(x), x = score / c", lambda s, x, c: c * (0.5 + 0.5 * np.tanh(0.5 * x / c))),
    "arctan": ("c * arctan(x), x = score / c", lambda s, x, c: c * np.arctan(x / c)),
    "arctan-times-2-pi": ("2 c / pi * arctan(x), x = score / c", lambda s, x, c: 2 * c / np.pi * np.arctan(x / c)),
    "arctan-2-pi": (
        "2 c / pi * arctan(pi x / 2), x = score / c",
        lambda s, x, c: 2 * c / np.pi * np.arctan(0.5 * np.pi * x / c),
    ),
    "sin": ("c * sin(x), x = score / c", lambda s, x, c: c * np.sin(x / c)),
    "erf": ("c * erf(x), x = score / c", lambda s, x, c: c * FUNCTIONS["erf"][1](x / c)),
    "before-scale": (
        "bounded before the scale, and not after it",
        lambda s, x, c: c * np.tanh(s["unscaled"] / c) * s.config.softmax_scale,
    ),
    "unscaled": ("bounded, and not scaled", lambda s, x, c: c * np.tanh(s["unscaled"] / c)),
    "scaled-again": (
        "bounded, and scaled again after that",
        lambda s, x, c: c * np.tanh(x / c) * s.config.softmax_scale,
    ),
    "positive-only": ("bounded where positive only", lambda s, x, c: np.where(x > 0, c * np.tanh(x / c), x)),
    "above-c-only": ("bounded only where |score| > c", lambda s, x, c: np.where(np.abs(x) > c, c * np.tanh(x / c), x)),
}
"""Name -> (words to be read after "Scores are", (state, similarity, c) -> capped)."""


def softcaps() -> Iterator[Bug]:
    for name, (words, function) in CAPS.items():

        def step(state: State, beneath: Step, function: Cap = function) -> NDArray:
            c = state.config.softcap
            found: NDArray = beneath(state) if c is None else function(state, state["similarity"], c)
            return found

        yield around("capped", f"softcap-{name}", step, f"With a softcap c, scores are {words}.", OF_CAP)


# The sum with the bias ------------------------------------------------------------------------------

Sum = Callable[[State, NDArray, NDArray], NDArray]


def _raw(state: State, bias: NDArray) -> NDArray:
    scaled: NDArray = state["unscaled"] + bias
    return scaled * state.config.softmax_scale


def _twin(state: State, bias: NDArray) -> NDArray:
    if bias.shape[-1] != bias.shape[-2]:
        raise DoesNotApply("a bias can be transposed unnoticed only where Lq = Lk")
    return bias.swapaxes(-1, -2)


def _reshaped(state: State, bias: NDArray) -> NDArray:
    return bias.swapaxes(-1, -2).reshape(bias.shape)


SUMS: dict[str, tuple[str, Sum]] = {
    "ignored": ("is not added", lambda s, x, b: x),
    "multiplied": ("multiplies the scores", lambda s, x, b: x * b),
    "alone": ("replaces the scores", lambda s, x, b: b),
    "one-plus": ("multiplies the scores as 1 + bias", lambda s, x, b: x * (1.0 + b)),
    "exponential": ("multiplies the scores as exp(bias)", lambda s, x, b: x * np.exp(b)),
    "absolute": ("is added without its signs", lambda s, x, b: x + np.abs(b)),
    "squared": ("is added squared", lambda s, x, b: x + b * b),
    "exp-added": ("is added as exp(bias)", lambda s, x, b: x + np.exp(b)),
    "tanh-added": ("is added as tanh(bias)", lambda s, x, b: x + np.tanh(b)),
    "positive": ("is added where it is positive only", lambda s, x, b: x + np.maximum(b, 0.0)),
    "negative": ("is added where it is negative only", lambda s, x, b: x + np.minimum(b, 0.0)),
    "truncated": ("is truncated to integers", lambda s, x, b: x + np.trunc(b)),
    "rounded": ("is rounded to integers", lambda s, x, b: x + np.round(b)),
    "as-mask": ("is added as 1 where it is not 0", lambda s, x, b: x + (b != 0.0)),
    "largest": ("is combined by max(score, bias)", lambda s, x, b: np.maximum(x, b)),
    "smallest": ("is combined by min(score, bias)", lambda s, x, b: np.minimum(x, b)),
    "transposed": ("is added with rows and columns exchanged", lambda s, x, b: x + _twin(s, b)),
    "reshaped": ("is added with its memory read as (Lk, Lq)", lambda s, x, b: x + _reshaped(s, b)),
    "before-scale": ("is added before the scale", lambda s, x, b: cap(s, _raw(s, b))),
    "before-cap": ("is added before the softcap", lambda s, x, b: cap(s, s["similarity"] + b)),
    "capped": ("is bounded by the softcap by itself", lambda s, x, b: x + cap(s, b)),
    "capped-too": ("is added, and the sum bounded by the softcap again", lambda s, x, b: cap(s, x + b)),
    "uncapped": ("is added in place of the softcap", lambda s, x, b: s["similarity"] + b),
}
"""Name -> (words to be read after "The additive bias", (state, capped, bias with all four axes) -> scores)."""


def sums() -> Iterator[Bug]:
    for name, (words, function) in SUMS.items():

        def step(state: State, beneath: Step, function: Sum = function) -> NDArray:
            mask, capped = state.inputs.mask, state["capped"]
            found: NDArray = (
                beneath(state)
                if mask.bias is None
                else function(state, capped, np.broadcast_to(additive_bias(mask), capped.shape))
            )
            return found

        yield around("scores", f"bias-{name}", step, f"The additive bias {words}.", OF_SUM)


# The additive score ---------------------------------------------------------------------------------

Hidden = Callable[[NDArray, NDArray], NDArray]


def _of_sum(function: Callable[[NDArray], NDArray]) -> Hidden:
    return lambda q, k: function(q + k)


def _hidden_functions() -> Iterator[tuple[str, str, Hidden]]:
    yield "none", "without tanh", lambda q, k: q + k
    for name, (words, function) in FUNCTIONS.items():
        if name != "tanh":
            yield name, f"{words} in place of tanh", _of_sum(function)
    yield "difference", "tanh(A q - C k)", lambda q, k: np.tanh(q - k)
    yield "difference-back", "tanh(C k - A q)", lambda q, k: np.tanh(k - q)
    yield "product", "tanh((A q) * (C k))", lambda q, k: np.tanh(q * k)
    yield "product-plain", "(A q) * (C k)", lambda q, k: q * k
    yield "tanh-of-each", "tanh(A q) + tanh(C k)", lambda q, k: np.tanh(q) + np.tanh(k)
    yield "product-of-each", "tanh(A q) * tanh(C k)", lambda q, k: np.tanh(q) * np.tanh(k)
    yield "key-outside", "tanh(A q) + C k", lambda q, k: np.tanh(q) + k
    yield "query-outside", "A q + tanh(C k)", lambda q, k: q + np.tanh(k)
    yield "key-alone", "tanh(C k)", lambda q, k: np.tanh(k + 0.0 * q)
    yield "query-alone", "tanh(A q)", lambda q, k: np.tanh(q + 0.0 * k)
    yield "halved", "tanh((A q + C k) / 2)", lambda q, k: np.tanh(0.5 * (q + k))
    yield "twice", "tanh(tanh(A q + C k))", lambda q, k: np.tanh(np.tanh(q + k))
    yield "largest", "tanh(max(A q, C k))", lambda q, k: np.tanh(np.maximum(q, k))


def _matrix(state: State, name: str, other: str) -> Iterator[tuple[str, NDArray]]:
    """A matrix of the additive score as it may be read: as it is, transposed, reshaped, the other one, none."""
    own = state.parameters[f"score.{name}.weight"]
    yield "", own
    square = own.shape[0] == own.shape[1]
    yield "transposed-if-square", own.T if square else own
    yield "missing-if-square", np.eye(len(own)) if square else own
    if square:
        yield "transposed", own.T
        yield "missing", np.eye(len(own))
    if own.shape[0] != own.shape[1]:
        yield "reshaped", own.reshape(own.shape[::-1]).T
    yield "of-the-other", state.parameters[f"score.{other}.weight"]


def _hidden(state: State, readings: tuple[str, str], function: Hidden) -> NDArray:
    pairs = (("queries", "query", "key"), ("keys", "key", "query"))
    terms = []
    for reading, (heads, name, other) in zip(readings, pairs, strict=True):
        matrix = dict(_matrix(state, name, other)).get(reading)
        if matrix is None:
            raise DoesNotApply(f"score.{name}.weight can't be {reading} here")
        terms.append((state["queries"] if heads == "queries" else state.heads_of("keys")) @ matrix.T)
    return function(terms[0][:, :, :, None, :], terms[1][:, :, None, :, :])


READINGS = {
    "": "as it is",
    "transposed": "transposed",
    "missing": "left out",
    "reshaped": "reshaped in place of transposed",
    "of-the-other": "exchanged for the other one",
    "transposed-if-square": "transposed where it is square",
    "missing-if-square": "left out where it is square",
}


def additive_scores() -> Iterator[Bug]:
    for name, words, function in _hidden_functions():
        yield _additive(name, ("", ""), function, f"The hidden units of the additive score are {words}")
    for first, words in READINGS.items():
        for second, others in READINGS.items():
            if first or second:
                name = f"query-{first or 'right'}-key-{second or 'right'}"
                sentence = f"In the additive score score.query.weight is {words}, score.key.weight {others}"
                yield _additive(name, (first, second), lambda q, k: np.tanh(q + k), sentence)


def _additive(name: str, readings: tuple[str, str], function: Hidden, sentence: str) -> Bug:
    def step(state: State, beneath: Step) -> NDArray | None:
        if state.config.score != "additive":
            found: NDArray | None = beneath(state)
            return found
        return _hidden(state, readings, function)

    return around("additive_hidden", f"additive-{name}", step, f"{sentence}.", OF_ADDITIVE)
