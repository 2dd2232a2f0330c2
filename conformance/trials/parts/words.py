"""What several parts draw from: factors, orders, places."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.trials.changes import Change, Factor, Only, Order, Where
from conformance.trials.faults import Dice, Fault
from conformance.trials.layer import View
from conformance.trials.points import axis_of

Parts = dict[str, Callable[[Dice], Fault]]
"""Name of a family -> a function that draws one of its faults."""

NEEDS = {
    "past_k": "past",
    "past_v": "past",
    "softcap": "softcap",
    "capped": "softcap",
    "bias": "bias",
    "factor": "dropout",
    "kept": "dropout",
    "hidden": "additive",
    "inside": "additive",
    "vector": "additive",
    "a_w": "additive",
    "c_w": "additive",
    "scale": "scaled",
    "allow": "allowed",
    "lens": "lens",
    "valid_lens": "lens",
    "causal": "causal",
    "offset": "causal",
    "left": "window",
    "right": "window",
    "q_b": "biases",
    "k_b": "biases",
    "v_b": "biases",
    "o_b": "biases",
}
"""Point -> the feature without which it is not there, or shows nothing of its own."""


def needs_of(point: str) -> tuple[str, ...]:
    """What a fault at this point needs."""
    return (NEEDS[point],) if point in NEEDS else ()


SIZES: dict[str, Callable[[View], float]] = {
    "query_dim": lambda view: view.config.query_dim,
    "key_dim": lambda view: view.config.key_dim,
    "value_dim": lambda view: view.config.value_dim,
    "output_dim": lambda view: view.config.output_dim,
    "embed_dim": lambda view: view.config.embed_dim,
    "head_dim": lambda view: view.config.head_dim,
    "value_head_dim": lambda view: view.config.value_head_dim,
    "num_heads": lambda view: view.H,
    "num_kv_heads": lambda view: view.G,
    "Lq": lambda view: view.Lq,
    "Lk": lambda view: view.Lk,
    "B": lambda view: view.B,
}
"""What a factor may depend on."""

POWERS = {"{}": 1.0, "1 / {}": -1.0, "sqrt({})": 0.5, "1 / sqrt({})": -0.5}


def factor(dice: Dice) -> Factor:
    """A constant, a power of a size, or of the ratio of two."""
    kind = dice.number(0, 2)
    if kind == 0:
        number = dice.one_of((0.5, 0.8, 0.9, 0.97, 1.01, 1.1, 1.5, 2.0, 3.0, -1.0, dice.real(0.3, 3.0)))
        return Factor(f"{number:g}", lambda view: number)
    words, power = dice.one_of(list(POWERS.items()))
    name = dice.one_of(list(SIZES))
    if kind == 1:
        return Factor(words.format(name), lambda view: max(SIZES[name](view), 1) ** power)
    other = dice.one_of([size for size in SIZES if size != name])
    said = words.format(f"({name} / {other})")
    return Factor(said, lambda view: (max(SIZES[name](view), 1) / max(SIZES[other](view), 1)) ** power)


def order(dice: Dice, role: str) -> Order:
    """Another order of the elements along an axis."""
    options = ["rolled", "reversed", "exchanged", "halves"]
    if role == "joined":
        options += ["interleaved", "interleaved"]
    if role in ("channel", "width", "unit"):
        options += ["odd ones last"]
    kind = dice.one_of(options)
    if kind == "rolled":
        by = dice.one_of((1, -1, 2, 3))
        return Order(role, f"rolled by {by}", lambda size, view: (np.arange(size) - by) % size)
    if kind == "reversed":
        return Order(role, "reversed", lambda size, view: np.arange(size)[::-1])
    if kind == "exchanged":
        first, second = dice.number(0, 2), dice.number(1, 3)
        if first == second:
            second += 1
        return Order(role, f"{first} and {second} exchanged", lambda size, view: _exchanged(size, first, second))
    if kind == "halves":
        return Order(role, "halves exchanged", lambda size, view: np.roll(np.arange(size), size // 2))
    if kind == "odd ones last":
        return Order(role, "even places first", lambda size, view: np.r_[0:size:2, 1:size:2])
    return Order(role, "read as (d, H) for (H, d)", _interleaved)


def _exchanged(size: int, first: int, second: int) -> NDArray:
    places = np.arange(size)
    if max(first, second) < size:
        places[[first, second]] = second, first
    return places


def _interleaved(size: int, view: View) -> NDArray:
    heads = view.H if size % view.H == 0 else view.G
    if size % heads:
        return np.arange(size)
    return np.arange(size).reshape(heads, -1).T.ravel()


# Places ----------------------------------------------------------------------------------------------


def _along(role: str, chosen: Callable[[NDArray, int, View], NDArray]) -> Where:
    """Elements whose number along an axis is chosen, of (numbers, size, view)."""

    def where(array: NDArray, point: str, view: View) -> NDArray | bool:
        axis = axis_of(point, role)
        if axis is None:
            return False
        size = array.shape[axis]
        shape = [1] * array.ndim
        shape[axis] = size
        return chosen(np.arange(size), size, view).reshape(shape)

    return where


def _call(chosen: Callable[[View], bool]) -> Where:
    return lambda array, point, view: chosen(view)


def _last_block(block: int) -> Callable[[NDArray, int, View], NDArray]:
    return lambda numbers, size, view: (numbers >= size - size % block) & (size > block)


PRESENT: dict[str, Callable[[View], bool]] = {
    "lens": lambda view: view.inputs.mask.valid_lens is not None,
    "allowed": lambda view: view.inputs.mask.allowed is not None,
    "bias": lambda view: view.inputs.mask.bias is not None,
    "causal": lambda view: view.inputs.mask.causal,
    "window": lambda view: view.inputs.mask.window is not None,
    "past": lambda view: view.inputs.past_keys is not None,
}
"""A feature of the call -> whether it is there; the names are those of `conformance.trials.problems`."""


def place(dice: Dice, point: str) -> tuple[str, Where, tuple[str, ...]]:
    """Where a fault acts: in words, as a function, and what it needs."""
    roles = [role for role in ("head", "item", "query", "key", "channel") if axis_of(point, role) is not None]
    kinds = [*roles, *roles, "longer", "present", "absent", "one item", "grouped"]
    kind = dice.one_of(kinds)
    if kind == "longer":
        above = dice.one_of((4, 5, 8, 16))
        side = dice.one_of(("Lk", "Lq"))
        needs = ("long",) if side == "Lk" and above > 5 else ()
        return f"where {side} > {above}", _call(lambda view: SIZES[side](view) > above), needs
    if kind in ("present", "absent"):
        name = dice.one_of(list(PRESENT))
        if kind == "present":
            return f"in calls with {name}", _call(PRESENT[name]), (name,)
        return f"in calls without {name}", _call(lambda view: not PRESENT[name](view)), ()
    if kind == "one item":
        return "in calls of more than one item", _call(lambda view: view.B > 1), ()
    if kind == "grouped":
        return "in layers with grouped heads", _call(lambda view: view.G < view.H), ("grouped",)
    if kind in ("query", "key"):
        return _positions(dice, kind)
    number = dice.number(0, 2)
    if dice.chance(0.3):
        return f"in the last {kind}", _along(kind, lambda numbers, size, view: numbers == size - 1), ()
    return f"in {kind} {number}", _along(kind, lambda numbers, size, view: numbers == number), ()


def _positions(dice: Dice, role: str) -> tuple[str, Where, tuple[str, ...]]:
    long = ("long",) if role == "key" else ()
    word = "queries" if role == "query" else "keys"
    kind = dice.one_of(("first", "last", "from", "block", "odd"))
    if kind == "first":
        return f"of the first {role}", _along(role, lambda numbers, size, view: numbers == 0), ()
    if kind == "last":
        return f"of the last {role}", _along(role, lambda numbers, size, view: numbers == size - 1), ()
    if kind == "from":
        start = dice.number(1, 5)
        return f"of {word} from number {start} on", _along(role, lambda numbers, size, view: numbers >= start), ()
    if kind == "block":
        block = dice.one_of((2, 4, 8))
        where = _along(role, _last_block(block))
        return f"of the last block of {block} {word}, where it is not full", where, long
    return f"of every other {role}", _along(role, lambda numbers, size, view: numbers % 2 == 1), ()


def somewhere(dice: Dice, point: str, change: Change) -> tuple[Change, tuple[str, ...]]:
    """The change in some places only, and what these need."""
    words, where, needs = place(dice, point)
    return Only(change, words, where), needs
