"""Shifts, exchanges and losses of any source of the mask, and of how they are combined."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.trials.changes import Change, Only, Own
from conformance.trials.faults import Dice, Fault
from conformance.trials.layer import View
from conformance.trials.parts.words import Parts, needs_of, place

SOURCES = ("lens", "allow", "causal", "left", "right")


def parts() -> Parts:
    found: Parts = {
        "mask: lengths shifted": _lengths,
        "mask: lengths of other items": _lengths_of_others,
        "mask: lengths from the right": _from_the_right,
        "mask: offset shifted": _offset,
        "mask: offset misread": _offset_misread,
        "mask: diagonal shifted": _diagonal,
        "mask: window's left side": partial(_side, point="window_left"),
        "mask: window's right side": partial(_side, point="window_right"),
        "mask: sources by OR": _by_or,
        "mask: source dropped beside another": _dropped_beside,
        "mask: keys opened or hidden": _opened,
        "mask: near keys only": _near,
    }
    for point in SOURCES:
        found[f"mask ignored: {point}"] = partial(_ignored, point=point)
        found[f"mask inverted: {point}"] = partial(_inverted, point=point)
        found[f"mask transposed: {point}"] = partial(_transposed, point=point)
        found[f"mask of another head or item: {point}"] = partial(_of_another, point=point)
        found[f"mask shifted: {point}"] = partial(_shifted, point=point)
        found[f"mask ignored in places: {point}"] = partial(_ignored_in_places, point=point)
    return found


def _fault(point: str, change: Change, *needs: str) -> Fault:
    return Fault("mask", ((point, change),), needs=(*needs_of(point), *needs))


def _own(point: str, words: str, function: Callable[[NDArray, View], NDArray], *needs: str) -> Fault:
    return _fault(point, Own(words, function), *needs)


# Numbers ---------------------------------------------------------------------------------------------


def _lengths(dice: Dice) -> Fault:
    by = dice.one_of((1, -1, 2, -2, 3))
    return _own("valid_lens", f"{by:+d}", lambda lens, view: (lens + by).clip(0, None))


def _lengths_of_others(dice: Dice) -> Fault:
    ways: dict[str, Callable[[NDArray, View], NDArray]] = {
        "those of the first item for all": lambda lens, view: np.broadcast_to(lens[:1], lens.shape),
        "those of the last item for all": lambda lens, view: np.broadcast_to(lens[-1:], lens.shape),
        "those of the next item": lambda lens, view: np.roll(lens, -1, axis=0),
        "those of the items in reverse": lambda lens, view: lens[::-1],
        "the longest for all": lambda lens, view: np.full_like(lens, lens.max(initial=0)),
        "the shortest for all": lambda lens, view: np.full_like(lens, lens.min(initial=view.Lk)),
        "item 1 has those of item 0": lambda lens, view: lens[
            np.where(np.arange(len(lens)) == 1, 0, np.arange(len(lens)))
        ],
    }
    words = dice.one_of(list(ways))
    return _own("valid_lens", words, ways[words])


def _from_the_right(dice: Dice) -> Fault:
    return _own("lens", "counted from the last key", lambda seen, view: seen[..., ::-1])


def _offset(dice: Dice) -> Fault:
    by = dice.one_of((1, -1, 2, -2))
    return _own("offset", f"{by:+d}", lambda offset, view: offset + by, dice.one_of(("causal", "window")))


def _offset_misread(dice: Dice) -> Fault:
    ways: dict[str, Callable[[NDArray, View], NDArray]] = {
        "0": lambda offset, view: 0 * offset,
        "negated": lambda offset, view: -offset,
        "doubled": lambda offset, view: 2 * offset,
        "that of item 0": lambda offset, view: np.broadcast_to(offset[:1], offset.shape),
        "of the items in reverse": lambda offset, view: offset[::-1],
        "Lk - Lq": lambda offset, view: np.full_like(offset, view.Lk - view.Lq),
        "plus Lk - Lq": lambda offset, view: offset + view.Lk - view.Lq,
        "less the length of the past": lambda offset, view: offset - view.Lp,
    }
    words = dice.one_of(list(ways))
    return _own("offset", words, ways[words], "offset", *(("past",) if "past" in words else ()))


def _side(dice: Dice, point: str) -> Fault:
    by = dice.one_of((1, -1, 2))
    return _own(point, f"{by:+d}", lambda side, view: np.maximum(side + by, 0), "window")


def _diagonal(dice: Dice) -> Fault:
    by = dice.one_of((1, -1, 2, -2))

    def moved(seen: NDArray, view: View) -> NDArray:
        place = view.seen["offset"][:, None, None, None] + np.arange(view.Lq)[:, None]
        return np.broadcast_to(np.arange(view.Lk) <= place + by, seen.shape)

    return _own("causal", f"diagonal {by:+d}", moved)


def _moved(seen: NDArray, by: int, axis: int, *, seen_first: bool) -> NDArray:
    """Each row moved by so many keys; what comes in is open or closed."""
    moved = np.roll(seen, by, axis=axis)
    size = seen.shape[axis]
    new = np.arange(size) < by if by > 0 else np.arange(size) >= size + by
    shape = [1] * seen.ndim
    shape[axis] = size
    return np.where(new.reshape(shape), seen_first, moved)


# Sources ---------------------------------------------------------------------------------------------


def _ignored(dice: Dice, point: str) -> Fault:
    return _own(point, "ignored", lambda seen, view: np.ones_like(seen))


def _inverted(dice: Dice, point: str) -> Fault:
    return _own(point, "inverted", lambda seen, view: ~seen)


def _transposed(dice: Dice, point: str) -> Fault:
    def transposed(seen: NDArray, view: View) -> NDArray:
        if view.Lq == view.Lk:
            return seen.swapaxes(2, 3)
        rows, columns = np.arange(view.Lq)[:, None] % view.Lk, np.arange(view.Lk)[None] % view.Lq
        return seen[:, :, columns, rows]

    return _own(point, "queries and keys exchanged", transposed)


def _of_another(dice: Dice, point: str) -> Fault:
    heads = point == "allow" and dice.chance(0.5)
    axis, word = (1, "head") if heads else (0, "item")
    if dice.chance(0.5):
        return _own(point, f"that of the next {word}", lambda seen, view: np.roll(seen, -1, axis=axis))
    return _own(
        point, f"that of {word} 0 for all", lambda seen, view: np.broadcast_to(seen.take([0], axis=axis), seen.shape)
    )


def _shifted(dice: Dice, point: str) -> Fault:
    by = dice.one_of((1, -1))
    axis, word = dice.one_of(((2, "query"), (3, "key")))
    filled = dice.chance(0.5)
    words = f"moved by {by:+d} {word}, {'open' if filled else 'closed'} at the end"
    return _own(point, words, lambda seen, view: _moved(seen, by, axis, seen_first=filled))


def _ignored_in_places(dice: Dice, point: str) -> Fault:
    words, where, needs = place(dice, point)
    change = Only(Own("ignored", lambda seen, view: np.ones_like(seen)), words, where)
    return _fault(point, change, *needs)


# How they are combined -------------------------------------------------------------------------------


def _present(view: View) -> list[NDArray]:
    return [view.seen[name] for name in (*SOURCES, "finite") if name in view.seen]


def _by_or(dice: Dice) -> Fault:
    def combined(mask: NDArray, view: View) -> NDArray:
        sources = _present(view)
        return np.logical_or.reduce(sources) if sources else mask

    pair = dice.one_of((("lens", "causal"), ("lens", "allowed"), ("allowed", "causal"), ("lens", "window")))
    fault = _own("mask", "sources combined with OR", combined, *pair)
    return Fault(fault.kind, fault.changes, also=("keys",), needs=fault.needs)


def _dropped_beside(dice: Dice) -> Fault:
    names = {"lens": "lens", "allow": "allowed", "causal": "causal", "left": "window"}
    lost = dice.one_of(list(names))
    beside = dice.one_of([name for name in names if name != lost])

    def ignored(seen: NDArray, view: View) -> NDArray:
        mask = view.inputs.mask
        there = {
            "lens": mask.valid_lens is not None,
            "allow": mask.allowed is not None,
            "causal": mask.causal,
            "left": mask.window is not None,
        }
        return np.ones_like(seen) if there[beside] else seen

    return _own(lost, f"ignored beside {names[beside]}", ignored, names[beside])


def _opened(dice: Dice) -> Fault:
    ways: dict[str, Callable[[NDArray, View], NDArray]] = {
        "key 0 is open to all": lambda mask, view: mask | (np.arange(view.Lk) == 0),
        "the last key is open to all": lambda mask, view: mask | (np.arange(view.Lk) == view.Lk - 1),
        "the last key is hidden": lambda mask, view: mask & (np.arange(view.Lk) < view.Lk - 1),
        "key 0 is hidden": lambda mask, view: mask & (np.arange(view.Lk) > 0),
        "every third key is hidden": lambda mask, view: mask & (np.arange(view.Lk) % 3 < 2),
        "keys from number 4 on are hidden": lambda mask, view: mask & (np.arange(view.Lk) < 4),
        "the last query sees all": lambda mask, view: mask | (np.arange(view.Lq)[:, None] == view.Lq - 1),
    }
    words = dice.one_of(list(ways))
    fault = _own("mask", words, ways[words])
    return Fault(fault.kind, fault.changes, also=("keys",) if "open" in words or "all" in words else ())


def _near(dice: Dice) -> Fault:
    reach = dice.number(1, 4)
    ahead = dice.chance(0.5)

    def near(mask: NDArray, view: View) -> NDArray:
        apart = np.arange(view.Lk) - np.arange(view.Lq)[:, None]
        return mask & (apart <= reach if ahead else np.abs(apart) <= reach)

    return _own("mask", f"only keys at most {reach} {'ahead' if ahead else 'away'}", near)
