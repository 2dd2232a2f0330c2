"""Checks of a learner's class beside its numbers: it has four matrices alone, and drops weights in training alone."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.learn.running.classes import CALLS, NAME, PARAMETERS
from mha.learn.running.dialects import given, taken
from mha_core.errors import one_line

RATE = 0.25
"""The dropout asked for. It is not 0.5, where the share that is kept is the share that is dropped."""

KEPT = 1.0 / (1.0 - RATE)
"""The factor of a weight that is kept."""

MOST_DROPPED = 0.6
"""The share of dropped weights beyond which it is no chance, even where one draw counts for all queries of a head."""

BATCH, HEADS, WIDTH, QUERIES, KEYS = 4, 4, 16, 50, 6

IN_TRAINING = f"in training with dropout={RATE:g}"


def not_the_matrices(made: Callable[..., Any], dialect: str) -> str:
    """Return a sentence if a class has parameters beside its four matrices, or random outputs; otherwise "".

    A class that can't be run also gives "": the test cases report it.
    """
    try:
        layer = made(WIDTH, HEADS)
        names = HELD[dialect](layer, _asked(dialect)[1])
    except Exception:
        return ""
    extra = [name for name in names if name not in {f"{one}.{end}" for one in PARAMETERS for end in MATRIX}]
    if not set(PARAMETERS) <= {one.partition(".")[0] for one in names}:  # a layer is missing: the cases tell that too
        return ""
    if not extra:
        return _drawn(made, dialect)
    bias = "; its layers have no bias" if any(name.endswith("bias") for name in extra) else ""
    return f"{NAME} must have no parameters but the matrices of {', '.join(PARAMETERS)}{bias}. Got: {', '.join(extra)}"


def _drawn(made: Callable[..., Any], dialect: str) -> str:
    """A sentence on two equal calls with different outputs; "" if they are equal."""
    try:
        first, second = (_output(made, dialect, ()) for _ in range(2))
    except Exception:
        return ""
    if _same(first, second) or not np.isfinite(first).all():
        return ""
    return "two equal calls outside training, without dropout, give different outputs: something is drawn at random"


def _output(made: Callable[..., Any], dialect: str, rate: tuple[float, ...], training: int = 0) -> NDArray:
    """The output of a new layer; `rate`: its dropout, or () for that of the class."""
    layer = made(WIDTH, HEADS, *rate)
    return np.asarray(taken(dialect, CALLS[dialect](layer, *_asked(dialect), training)))


def wrong_dropout(made: Callable[..., Any], dialect: str) -> str:
    """Return a sentence on what is wrong with the dropout of a class; "" if it is right.

    The test masks all keys but one, and makes the output's matrix the identity. So a head's output is its value times
    the weight 1. In training it must be the value times 0 or times `KEPT`, 1 / (1 - dropout).
    """
    where = "with dropout=0"
    try:
        right = _output(made, dialect, (0.0,))
        where = f"with dropout={RATE:g}, outside training"
        evaluated = _output(made, dialect, (RATE,))
        where = IN_TRAINING
        first, second = (_output(made, dialect, (RATE,), training) for training in (1, 2))
    except Exception as error:
        return f"{where}: {one_line(error)}"
    if not _same(evaluated, right):
        return (
            f"with dropout={RATE:g}, the output outside training is not that of dropout=0: dropout must act in "
            "training alone"
        )
    if first.shape != right.shape or second.shape != right.shape:
        return f"{IN_TRAINING}, the output has shape {first.shape}; it must be {right.shape}"
    return _of_training(right, first, second)


def _of_training(right: NDArray, first: NDArray, second: NDArray) -> str:
    """Return what is wrong with two outputs in training, given the one outside it; "" if nothing is."""
    values, made = (
        np.reshape(both, (-1, WIDTH // HEADS)) for both in (np.stack([right] * 2), np.stack([first, second]))
    )
    if not np.isfinite(made).all():
        return (
            f"{IN_TRAINING}, the output has numbers that are not finite: dropout must act on the attention weights, "
            "after the softmax"
        )
    weights = (made * values).sum(-1, keepdims=True) / (values * values).sum(-1, keepdims=True)
    if not _same(weights * values, made):
        return (
            f"{IN_TRAINING}, a head's output is not the value of the only key allowed times a weight: dropout must act "
            "on the attention weights, after the softmax"
        )
    if _same(weights, np.ones_like(weights)):
        return (
            f"{IN_TRAINING}, the weight of the only key allowed stays 1: dropout must act on the attention weights, "
            "after the softmax"
        )
    other = weights[~(np.isclose(weights, 0.0, atol=1e-4) | np.isclose(weights, KEPT, rtol=1e-3))]
    if other.size:
        return (
            f"{IN_TRAINING}, a weight of 1 becomes {other[0]:.4g}; it must become 0, or 1 / (1 - dropout) = {KEPT:.4g}"
        )
    dropped = float(np.isclose(weights, 0.0, atol=1e-4).mean())
    if dropped > MOST_DROPPED or dropped == 0.0:
        return f"{IN_TRAINING}, {dropped:.0%} of the weights are dropped: dropout is the share that is dropped"
    if _same(first, second):
        return f"{IN_TRAINING}, two calls drop the same weights: each must draw its own"
    return ""


def _same(a: NDArray, b: NDArray) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-4)


def _asked(dialect: str) -> tuple[dict[str, NDArray], list[Any]]:
    """The matrices, and the call: lengths of 1. All widths are `WIDTH`: others are asked for by the cases."""
    rng = np.random.default_rng(0)
    matrices = {name: rng.normal(size=(WIDTH, WIDTH)).astype("float32") for name in PARAMETERS}
    matrices["w_o"] = np.eye(WIDTH, dtype="float32")
    lengths = (QUERIES, KEYS, KEYS)
    arrays = [rng.normal(size=(BATCH, length, WIDTH)).astype("float32") for length in lengths]
    return matrices, [given(dialect, array) for array in (*arrays, np.ones(BATCH, "int32"))]


# Names of parameters --------------------------------------------------------------------------------------

MATRIX = ("weight", "kernel")
"""Names that frameworks have for the matrix of a layer."""


def _torch(layer: Any, tensors: list[Any]) -> list[str]:
    layer(*tensors)
    return [name for name, _ in layer.named_parameters()]


def _jax(layer: Any, tensors: list[Any]) -> list[str]:
    variables = layer.init(importlib.import_module("jax").random.key(0), *tensors)
    flat: Mapping[str, Any] = importlib.import_module("flax.traverse_util").flatten_dict(variables["params"], sep=".")
    return list(flat)


def _tf(layer: Any, tensors: list[Any]) -> list[str]:
    layer(*tensors)
    return _by_owner(layer, layer.trainable_weights)


def _mxnet(layer: Any, tensors: list[Any]) -> list[str]:
    layer.initialize()
    layer(*tensors)
    return _by_owner(layer, layer.collect_params().values())


def _by_owner(layer: Any, parameters: Iterable[Any]) -> list[str]:
    """The names of parameters: that of the layer in which one is, and its own."""
    owned = {
        id(getattr(getattr(layer, name), end, None)): f"{name}.{end}"
        for name in PARAMETERS
        for end in (*MATRIX, "bias")
    }
    return [owned.get(id(one), one.name) for one in parameters]


HELD: dict[str, Callable[[Any, list[Any]], list[str]]] = {"torch": _torch, "tf": _tf, "jax": _jax, "mxnet": _mxnet}
"""Framework -> (layer, a call's arrays) -> the names of its parameters."""

PROMISES: dict[str, Callable[[Callable[..., Any], str], str]] = {
    "parameters": not_the_matrices,
    "dropout": wrong_dropout,
}
"""Name -> (class, its framework) -> a sentence on what is wrong; "" if nothing is."""
