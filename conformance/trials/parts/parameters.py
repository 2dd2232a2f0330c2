"""Matrices and biases that are read wrongly, exchanged, lost, or counted twice."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.trials.changes import Only, Own
from conformance.trials.faults import Dice, Fault
from conformance.trials.layer import PROJECTION, View
from conformance.trials.parts.words import Parts, place

LETTERS = ("q", "k", "v", "o")


def parts() -> Parts:
    found: Parts = {}
    for letter in LETTERS:
        found[f"matrix misread: {letter}_w"] = partial(_misread, point=f"{letter}_w")
        found[f"matrix of another: {letter}_w"] = partial(_of_another, letter=letter)
        found[f"matrix damaged: {letter}_w"] = partial(_damaged, point=f"{letter}_w")
    for letter in ("q", "v", "o"):
        found[f"bias lost or twice: {letter}_b"] = partial(_bias, letter=letter)
    return found | {
        "bias of another": _bias_of_another,
        "input of another": _input_of_another,
        "residual": _residual,
        "bias in places": _bias_in_places,
    }


def _misread(dice: Dice, point: str) -> Fault:
    def transposed(weight: NDArray, view: View) -> NDArray:
        return weight.T if weight.shape[0] == weight.shape[1] else weight

    def read(weight: NDArray, view: View) -> NDArray:
        return weight.ravel(order="F").reshape(weight.shape)

    words, function, needs = dice.one_of(
        (("transposed, where it is square", transposed, ("square",)), ("its memory read by columns", read, ()))
    )
    return Fault("matrix", ((point, Own(words, function)),), needs=needs)


def _of_another(dice: Dice, letter: str) -> Fault:
    other = dice.one_of([name for name in LETTERS if name != letter])
    name = f"{PROJECTION[other]}.weight"

    def another(weight: NDArray, view: View) -> NDArray:
        found = np.asarray(view.weights[name])
        return found if found.shape == weight.shape else weight

    words = f"that of {PROJECTION[other]}, where the shapes agree"
    return Fault("matrix", ((f"{letter}_w", Own(words, another)),), needs=("square", "not grouped"))


def _damaged(dice: Dice, point: str) -> Fault:
    number, step = dice.number(0, 3), dice.one_of((1, -1))
    words, function = dice.one_of(
        (
            (f"row {number} is 0", lambda weight, view: _zeroed(weight, number, 0)),
            (f"column {number} is 0", lambda weight, view: _zeroed(weight, number, 1)),
            ("the last row is 0", lambda weight, view: _zeroed(weight, len(weight) - 1, 0)),
            ("0 below 0.1 in size", lambda weight, view: np.where(np.abs(weight) < 0.1, 0.0, weight)),
            (f"rows of the head {step:+d} of it", lambda weight, view: _rows_of_next(weight, view, step)),
            ("less the mean of each row", lambda weight, view: weight - weight.mean(axis=1, keepdims=True)),
            ("each row of length 1", lambda weight, view: weight / np.sqrt((weight**2).sum(axis=1, keepdims=True))),
            ("plus 0.1 on its diagonal", lambda weight, view: weight + 0.1 * np.eye(*weight.shape)),
        )
    )
    return Fault("matrix", ((point, Own(words, function)),))


def _zeroed(weight: NDArray, number: int, axis: int) -> NDArray:
    shape = [1, 1]
    shape[axis] = -1
    return np.where((np.arange(weight.shape[axis]) == number).reshape(shape), 0.0, weight)


def _rows_of_next(weight: NDArray, view: View, step: int) -> NDArray:
    heads = view.H if len(weight) % view.H == 0 else view.G
    return np.roll(weight, step * (len(weight) // heads), axis=0) if len(weight) % heads == 0 else weight


def _bias(dice: Dice, letter: str) -> Fault:
    words, function = dice.one_of(
        (
            ("missing", lambda bias, view: 0.0 * bias),
            ("twice", lambda bias, view: 2.0 * bias),
            ("subtracted", lambda bias, view: -bias),
            ("once for each head", lambda bias, view: view.H * bias),
            ("its mean", lambda bias, view: np.full_like(bias, bias.mean())),
            ("that of channel 0 in all", lambda bias, view: np.full_like(bias, bias[0])),
            (
                "only in the first head",
                lambda bias, view: np.where(np.arange(len(bias)) * view.H < len(bias), bias, 0.0),
            ),
            ("less in later channels", lambda bias, view: bias / (1.0 + np.arange(len(bias)))),
        )
    )
    return Fault("bias", ((f"{letter}_b", Own(words, function)),), needs=("biases",))


def _bias_in_places(dice: Dice) -> Fault:
    """A bias left out at some positions."""
    letter = dice.one_of(("q", "k", "v", "o"))
    point = "output" if letter == "o" else f"{letter}_proj"
    name = f"{PROJECTION[letter]}.bias"
    words, chosen, needs = place(dice, point)
    lost = Own(f"without {name}", lambda made, view: made - view.weights[name] if name in view.weights else made)
    return Fault("bias", ((point, Only(lost, words, chosen)),), needs=("biases", *needs))


def _bias_of_another(dice: Dice) -> Fault:
    letter, other = dice.one_of((("q", "k"), ("q", "v"), ("v", "q"), ("v", "k"), ("v", "o"), ("o", "v"), ("o", "q")))
    name = f"{PROJECTION[other]}.bias"

    def another(bias: NDArray, view: View) -> NDArray:
        found = view.weights.get(name)
        return bias if found is None or found.shape != bias.shape else np.asarray(found)

    words = f"that of {PROJECTION[other]}, where the shapes agree"
    return Fault("bias", ((f"{letter}_b", Own(words, another)),), needs=("biases", "square", "not grouped"))


def _input_of_another(dice: Dice) -> Fault:
    letter, other = dice.one_of((("q", "k"), ("k", "v"), ("v", "k"), ("k", "q"), ("v", "q")))
    share = dice.one_of((1.0, 1.0, 0.5))

    def another(x: NDArray, view: View) -> NDArray:
        found = {"q": view.q, "k": view.k, "v": view.v}[other]
        return (1.0 - share) * x + share * found if found.shape == x.shape else x

    what = "" if share == 1.0 else f"{share:g} of "
    words = f"{what}the inputs of {PROJECTION[other]}, where the shapes agree"
    needs = ("square", "as many queries") if "q" in (letter, other) else ("square",)
    return Fault("input", ((f"{letter}_in", Own(words, another)),), needs=needs)


def _residual(dice: Dice) -> Fault:
    point, name, share = (*dice.one_of((("output", "q"), ("output", "v"), ("merged", "q"))), dice.one_of((1.0, 0.1)))

    def added(x: NDArray, view: View) -> NDArray:
        found = view.q if name == "q" else view.v
        return x + share * found if found.shape == x.shape else x

    words = f"plus {share:g} times the layer's input of {PROJECTION[name]}, where the shapes agree"
    needs = ("square", "as many queries") if name == "v" else ("square",)
    return Fault("residual", ((point, Own(words, added)),), needs=needs)
