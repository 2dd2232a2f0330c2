"""Wrong gradients of a layer that is right forward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.trials.changes import Own
from conformance.trials.faults import Dice, Fault
from conformance.trials.layer import View
from conformance.trials.parts.words import Parts, factor

INSIDE = ("d_output", "d_heads", "d_kept", "d_weights", "d_scores", "row_sum", "slope", "d_scaled", "d_q", "d_k", "d_v")

ENDS = (
    *("queries", "keys", "values", "past_keys", "past_values", "bias"),
    *(f"{name}_proj.{kind}" for name in ("q", "k", "v", "out") for kind in ("weight", "bias")),
    *("score.query.weight", "score.key.weight", "score.vector"),
)

NEEDS = {"slope": ("softcap",), "to past_keys": ("past",), "to past_values": ("past",), "to bias": ("bias",)}


def parts() -> Parts:
    points = (*INSIDE, *(f"to {name}" for name in ENDS))
    found: Parts = {f"gradient factor: {point}": partial(_factor, point=point) for point in points}
    found |= {f"gradient lost: {point}": partial(_lost, point=point) for point in points}
    for point in ("d_output", "d_heads", "d_scores", "d_q", "d_k", "d_v", "to queries", "to keys", "to values"):
        found[f"gradient of another: {point}"] = partial(_of_another, point=point)
    for name in ("q", "k", "v", "out"):
        found[f"gradient of rows: {name}"] = partial(_rows, name=name)
    return found | {"gradient of the softmax": _softmax, "gradient of the dropout": _dropout}


def _fault(point: str, words: str, function: Callable[[NDArray, View], NDArray], *needs: str) -> Fault:
    named = NEEDS.get(point, ())
    if point.startswith("to score."):
        named = ("additive",)
    elif point.endswith(".bias"):
        named = ("biases",)
    return Fault("gradient", ((point, Own(words, function)),), needs=(*named, *needs))


def _factor(dice: Dice, point: str) -> Fault:
    change = factor(dice)
    return _fault(point, change.words, lambda x, view: change(x, point, view))


def _lost(dice: Dice, point: str) -> Fault:
    kind = dice.one_of(("all", "item", "first", "last", "clipped"))
    if kind == "all":
        return _fault(point, "0", lambda x, view: 0.0 * x)
    if kind == "clipped":
        return _fault(point, "clipped to 0.5", lambda x, view: x.clip(-0.5, 0.5))
    axis = -1 if kind == "last" else 0
    words = (
        f"0 but for number 0 of the {'last' if axis else 'first'} axis"
        if kind != "item"
        else "0 at number 1 of the first axis"
    )

    def lost(x: NDArray, view: View) -> NDArray:
        if x.ndim == 0:
            return 0.0 * x
        shape = [1] * x.ndim
        shape[axis] = -1
        number = np.arange(x.shape[axis]).reshape(shape)
        return np.where(number == 1 if kind == "item" else number > 0, 0.0, x)

    return _fault(point, words, lost)


def _of_another(dice: Dice, point: str) -> Fault:
    axis, word = dice.one_of(((0, "item"), (1, "place on the second axis")))
    step = dice.one_of((1, -1))
    return _fault(point, f"that of the {word} {step:+d} of it", lambda x, view: np.roll(x, -step, axis=axis))


def _rows(dice: Dice, name: str) -> Fault:
    kind = dice.one_of(("weight", "bias"))
    point = f"to {name}_proj.{kind}"
    options: dict[str, Callable[[NDArray, View], NDArray]] = {
        "over the items": lambda x, view: x / max(view.B, 1),
        "over the positions": lambda x, view: x / max(view.Lq if name in ("q", "out") else view.Lk - view.Lp, 1),
        "over the heads": lambda x, view: x / view.H,
        "plus a hundredth of the parameter": lambda x, view: x + 0.01 * np.asarray(view.weights[f"{name}_proj.{kind}"]),
        "rows in reverse": lambda x, view: x[::-1],
    }
    words = dice.one_of(list(options))
    return _fault(point, words, options[words])


def _softmax(dice: Dice) -> Fault:
    options: dict[str, tuple[str, Callable[[NDArray, View], NDArray]]] = {
        "0": ("row_sum", lambda x, view: 0.0 * x),
        "the mean over the queries": (
            "row_sum",
            lambda x, view: np.broadcast_to(x.mean(axis=2, keepdims=True), x.shape),
        ),
        "that of head 0": ("row_sum", lambda x, view: np.broadcast_to(x[:, :1], x.shape)),
        "that of the previous query": ("row_sum", lambda x, view: np.roll(x, 1, axis=2)),
        "times the weights once more": ("d_scores", lambda x, view: x * view.seen["weights"]),
        "half of it": ("row_sum", lambda x, view: 0.5 * x),
    }
    words = dice.one_of(list(options))
    return _fault(options[words][0], words, options[words][1])


def _dropout(dice: Dice) -> Fault:
    def through(x: NDArray, view: View) -> NDArray:
        return view.seen["d_kept"] if "factor" in view.seen else x

    def of_values(x: NDArray, view: View) -> NDArray:
        whole = np.einsum("bhqk,bhqc->bhkc", view.seen["weights"], view.seen["d_heads"])
        return whole.reshape(view.B, view.G, view.H // view.G, *whole.shape[2:]).sum(axis=2)

    def not_rescaled(x: NDArray, view: View) -> NDArray:
        return x * (1.0 - view.config.dropout) if "factor" in view.seen else x

    point, words, function = dice.one_of(
        (
            ("d_weights", "past the dropout", through),
            ("d_v", "by the weights before dropout", of_values),
            ("d_weights", "not rescaled", not_rescaled),
        )
    )
    return _fault(point, words, function, "dropout")
