"""A normaliser that is off, another axis, another temperature, weights that are cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.trials.changes import Only, Own
from conformance.trials.faults import Dice, Fault
from conformance.trials.layer import View
from conformance.trials.parts.words import Parts, place


def parts() -> Parts:
    return {
        "softmax: sum plus": partial(_at, point="total", ways=_plus),
        "softmax: other sums": partial(_at, point="total", ways=_sums),
        "softmax: other axis": partial(_at, point="weights", ways=_axes),
        "softmax: temperature": partial(_at, point="scores", ways=_temperatures),
        "softmax: other exponentials": partial(_at, point="exponentials", ways=_exponentials),
        "softmax: weights cut": partial(_at, point="weights", ways=_cut),
        "softmax: weights blended": partial(_at, point="weights", ways=_blended),
        "softmax: in places": _in_places,
    }


Ways = dict[str, Callable[[NDArray, View], NDArray]]


def _at(dice: Dice, point: str, ways: Callable[[Dice], Ways]) -> Fault:
    options = ways(dice)
    words = dice.one_of(list(options))
    return Fault("softmax", ((point, Own(words, options[words])),))


def _plus(dice: Dice) -> Ways:
    extra = dice.one_of((1e-3, 0.01, 0.1, 0.5, 1.0, 2.0))
    return {
        f"plus {extra:g}": lambda total, view: total + extra,
        f"at least {extra + 1:g}": lambda total, view: np.maximum(total, extra + 1),
        f"times {1 + extra / 3:.4g}": lambda total, view: total * float(f"{1 + extra / 3:.4g}"),
    }


def _exact(view: View) -> NDArray:
    """The exponential of every score, the hidden ones too, less the highest that is seen."""
    scores, mask = view.seen["scores"], view.seen["mask"]
    highest = np.where(mask, scores, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    return np.exp(scores - np.where(np.isneginf(highest), 0.0, highest))


def _sums(dice: Dice) -> Ways:
    return {
        "over hidden keys too": lambda total, view: _exact(view).sum(axis=-1, keepdims=True),
        "without the last key": lambda total, view: view.seen["exponentials"][..., :-1].sum(axis=-1, keepdims=True),
        "without the first key": lambda total, view: view.seen["exponentials"][..., 1:].sum(axis=-1, keepdims=True),
        "the largest of the row alone": lambda total, view: view.seen["exponentials"].max(axis=-1, keepdims=True),
        "that of the previous query": lambda total, view: np.roll(total, 1, axis=2),
        "that of head 0": lambda total, view: np.broadcast_to(total[:, :1], total.shape),
        "the mean over the queries": lambda total, view: np.broadcast_to(
            total.mean(axis=2, keepdims=True), total.shape
        ),
        "to the power of 0.9": lambda total, view: total**0.9,
        "the root of the sum of squares": lambda total, view: np.sqrt(
            (view.seen["exponentials"] ** 2).sum(axis=-1, keepdims=True)
        ),
    }


def _along(axis: int | tuple[int, ...]) -> Callable[[NDArray, View], NDArray]:
    def softmax(weights: NDArray, view: View) -> NDArray:
        mask = view.seen["mask"]
        scores = np.where(mask, view.seen["scores"], -np.inf)
        highest = scores.max(axis=axis, keepdims=True, initial=-np.inf)
        e = np.where(mask, np.exp(scores - np.where(np.isneginf(highest), 0.0, highest)), 0.0)
        total = e.sum(axis=axis, keepdims=True)
        return e / np.where(total == 0.0, 1.0, total)

    return softmax


def _axes(dice: Dice) -> Ways:
    return {
        "softmax over queries": _along(2),
        "softmax over heads": _along(1),
        "softmax over items": _along(0),
        "softmax over queries and keys": _along((2, 3)),
        "softmax over heads and keys": _along((1, 3)),
    }


def _temperatures(dice: Dice) -> Ways:
    heat = dice.one_of((0.5, 0.7, 0.9, 1.1, 1.5, 2.0))
    slope = dice.one_of((0.05, 0.1, 0.3))
    return {
        f"over {heat:g}": lambda scores, view: scores / heat,
        "times log 2": lambda scores, view: scores * np.log(2.0),
        "over the number of the head plus 1": lambda scores, view: scores / (1.0 + np.arange(view.H))[:, None, None],
        f"less {slope:g} times the distance": lambda scores, view: (
            scores - slope * np.abs(np.arange(view.Lk) - np.arange(view.Lq)[:, None])
        ),
        f"plus {slope:g} times the number of the key": lambda scores, view: scores + slope * np.arange(view.Lk),
        "times log Lk": lambda scores, view: scores * np.log(max(view.Lk, 2)),
        "normalised over the keys": lambda scores, view: (
            (scores - scores.mean(axis=-1, keepdims=True)) / (scores.std(axis=-1, keepdims=True) + 1e-5)
        ),
    }


def _again(e: NDArray) -> NDArray:
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0.0, 1.0, total)


def _exponentials(dice: Dice) -> Ways:
    power = dice.one_of((0.5, 2.0))
    return {
        "with hidden keys": lambda e, view: _exact(view),
        f"to the power of {power:g}": lambda e, view: np.where(e > 0.0, e**power, 0.0),
        "max(1 + x / 3, 0)^3 for exp(x)": lambda e, view: np.where(
            e > 0.0, np.maximum(1.0 + np.log(np.maximum(e, 1e-300)) / 3.0, 0.0) ** 3, 0.0
        ),
        "plus 0.01 where seen": lambda e, view: np.where(view.seen["mask"], e + 0.01, 0.0),
        "that of the last key doubled": lambda e, view: e * np.where(np.arange(view.Lk) == view.Lk - 1, 2.0, 1.0),
    }


def _cut(dice: Dice) -> Ways:
    below = dice.one_of((0.01, 0.02, 0.05, 0.1))
    most = dice.number(1, 3)
    return {
        f"0 below {below:g}": lambda weights, view: np.where(weights < below, 0.0, weights),
        f"0 below {below:g}, and normalised": lambda weights, view: _again(np.where(weights < below, 0.0, weights)),
        f"only the {most} largest": lambda weights, view: _top(weights, most),
        f"only the {most} largest, and normalised": lambda weights, view: _again(_top(weights, most)),
        f"at most {10 * below:g}": lambda weights, view: np.minimum(weights, 10 * below),
    }


def _top(weights: NDArray, most: int) -> NDArray:
    ordered = np.sort(weights, axis=-1)[..., ::-1]
    return np.where(weights >= ordered[..., min(most, weights.shape[-1]) - 1, None], weights, 0.0)


def _blended(dice: Dice) -> Ways:
    share = dice.one_of((0.05, 0.1, 0.3))
    return {
        f"{share:g} of them spread over the keys that are seen": lambda weights, view: (
            (1.0 - share) * weights + share * _again(view.seen["mask"] * 1.0)
        ),
        f"{share:g} of them the mean over the heads": lambda weights, view: (
            (1.0 - share) * weights + share * weights.mean(axis=1, keepdims=True)
        ),
        "softmax taken twice": lambda weights, view: _again(np.where(view.seen["mask"], np.exp(weights), 0.0)),
        "the mean over the heads": lambda weights, view: np.broadcast_to(
            weights.mean(axis=1, keepdims=True), weights.shape
        ),
    }


def _in_places(dice: Dice) -> Fault:
    point, ways = dice.one_of((("total", _plus), ("scores", _temperatures), ("weights", _cut), ("weights", _blended)))
    options = ways(dice)
    words = dice.one_of(list(options))
    where, chosen, needs = place(dice, point)
    return Fault("softmax in places", ((point, Only(Own(words, options[words]), where, chosen)),), needs=needs)
