"""What is done wrong with dropout, a past, a given scale, a softcap, and the additive score."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.trials.changes import Own
from conformance.trials.faults import Dice, Fault
from conformance.trials.layer import View
from conformance.trials.parts.words import Parts, needs_of

Ways = dict[str, Callable[[NDArray, View], NDArray]]


def parts() -> Parts:
    return {
        "dropout": partial(_at, kind="dropout", points=("factor",), ways=_dropout),
        "dropout elsewhere": _dropout_elsewhere,
        "past": partial(_at, kind="past", points=("past_k", "past_v"), ways=_past),
        "past joined": partial(_at, kind="past", points=("k", "v"), ways=_joined, needs=("past",)),
        "given scale": partial(_at, kind="scale", points=("scale",), ways=_scale, needs=("scale",)),
        "softcap": partial(_at, kind="softcap", points=("softcap",), ways=_softcap),
        "softcap function": partial(_at, kind="softcap", points=("capped",), ways=_capped),
        "softcap where there is none": _capped_without,
        "additive score": partial(_at, kind="additive score", points=("hidden",), ways=_hidden),
        "additive score inside": partial(_at, kind="additive score", points=("inside",), ways=_inside),
        "additive score parameters": partial(_at, kind="additive score", points=("a_w", "c_w"), ways=_matrices),
        "mask bias": partial(_at, kind="mask's bias", points=("bias",), ways=_bias),
        "groups": partial(_at, kind="groups", points=("k_heads", "v_heads"), ways=_groups, needs=("grouped",)),
        "score of vectors": partial(_at, kind="vectors", points=("q", "k"), ways=_vectors),
    }


def _at(
    dice: Dice, points: tuple[str, ...], ways: Callable[[Dice], Ways], kind: str, needs: tuple[str, ...] = ()
) -> Fault:
    point, options = dice.one_of(points), ways(dice)
    words = dice.one_of(list(options))
    also = {"k_heads": ("keys",), "v_heads": ("values",)}.get(point, ()) if words in OF_KV_HEADS else ()
    return Fault(kind, ((point, Own(words, options[words])),), also=also, needs=(*needs_of(point), *needs))


OF_KV_HEADS = ("the first kv head for all", "the last kv head for all", "the next kv head", "kv heads in reverse")
"""Groups read wrongly as if the keys or values themselves had other heads, which nobody can tell apart."""


def _dropout(dice: Dice) -> Ways:
    return {
        "not rescaled": lambda factor, view: (factor > 0.0) * 1.0,
        "rescaled by p": lambda factor, view: (factor > 0.0) / max(view.config.dropout, 1e-9),
        "times 1 - p": lambda factor, view: (factor > 0.0) * (1.0 - view.config.dropout),
        "rescaled twice": lambda factor, view: factor**2,
        "what is kept is dropped": lambda factor, view: np.where(factor > 0.0, 0.0, factor.max(initial=0.0)),
        "left out in the last item": lambda factor, view: np.where(
            np.arange(view.B)[:, None, None, None] == view.B - 1, 1.0, factor
        ),
        "only where a key is left": lambda factor, view: np.where(
            (factor > 0.0).any(axis=-1, keepdims=True), factor, 1.0
        ),
        "of query 0 for all": lambda factor, view: np.broadcast_to(factor[:, :, :1], factor.shape),
        "of head 0 for all": lambda factor, view: np.broadcast_to(factor[:, :1], factor.shape),
        "rescaled by what is kept in the row": lambda factor, view: (
            (factor > 0.0) / np.maximum((factor > 0.0).mean(axis=-1, keepdims=True), 1e-9)
        ),
        "dropped ones halved": lambda factor, view: np.where(factor > 0.0, factor, 0.5),
    }


def _dropout_elsewhere(dice: Dice) -> Fault:
    def without(kept: NDArray, view: View) -> NDArray:
        return kept if view.inputs.dropout_keep is None else view.seen["weights"]

    def renormalised(kept: NDArray, view: View) -> NDArray:
        if view.inputs.dropout_keep is None:
            return kept
        total = kept.sum(axis=-1, keepdims=True)
        return kept / np.where(total == 0.0, 1.0, total)

    words, function = dice.one_of((("dropout ignored", without), ("normalised again after dropout", renormalised)))
    return Fault("dropout", (("kept", Own(words, function)),), needs=("dropout",))


def _past(dice: Dice) -> Ways:
    number = dice.one_of((0.5, 0.9, 1.1, 2.0))
    return {
        f"times {number:g}": lambda past, view: number * past,
        "reversed": lambda past, view: past[:, :, ::-1],
        "0": lambda past, view: 0.0 * past,
        "the first of them in all places": lambda past, view: np.broadcast_to(past[:, :, :1], past.shape),
        "without the newest": lambda past, view: np.where(np.arange(view.Lp)[:, None] == view.Lp - 1, 0.0, past),
        "of item 0 for all": lambda past, view: np.broadcast_to(past[:1], past.shape),
        "of kv head 0 for all": lambda past, view: np.broadcast_to(past[:, :1], past.shape),
        "moved by one": lambda past, view: np.roll(past, 1, axis=2),
    }


def _joined(dice: Dice) -> Ways:
    def behind(x: NDArray, view: View) -> NDArray:
        return np.concatenate([x[:, :, view.Lp :], x[:, :, : view.Lp]], axis=2)

    def overwritten(x: NDArray, view: View) -> NDArray:
        return np.where((np.arange(view.Lk) == view.Lp)[:, None] & (view.Lp > 0), x[:, :, max(view.Lp - 1, 0), None], x)

    return {"the past behind the new ones": behind, "the first new one replaced by the last past one": overwritten}


def _scale(dice: Dice) -> Ways:
    return {
        "the default for a given one": lambda scale, view: np.asarray(view.config.head_dim**-0.5),
        "squared where it is given": lambda scale, view: scale**2 if view.config.scale is not None else scale,
        "its inverse where it is given": lambda scale, view: 1 / scale if view.config.scale is not None else scale,
        "without its sign": lambda scale, view: np.abs(scale),
        "on top of the default": lambda scale, view: (
            scale * view.config.head_dim**-0.5 if view.config.scale is not None else scale
        ),
    }


def _softcap(dice: Dice) -> Ways:
    more = dice.one_of((0.1, 0.5, 1.0))
    return {
        f"plus {more:g}": lambda cap, view: cap + more,
        "doubled": lambda cap, view: 2.0 * cap,
        "squared": lambda cap, view: cap**2,
        "its root": lambda cap, view: np.sqrt(cap),
        "times the scale": lambda cap, view: cap * view.config.head_dim**-0.5,
        "times the number of heads": lambda cap, view: cap * view.H,
        "at least 2": lambda cap, view: np.maximum(cap, 2.0),
    }


def _capped(dice: Dice) -> Ways:
    def other(function: Callable[[NDArray], NDArray]) -> Callable[[NDArray, View], NDArray]:
        return lambda capped, view: view.seen["softcap"] * function(view.seen["scaled"] / view.seen["softcap"])

    return {
        "clipped": other(lambda x: x.clip(-1.0, 1.0)),
        "left out": lambda capped, view: view.seen["scaled"],
        "by an arctangent": other(lambda x: np.arctan(x) * 2.0 / np.pi),
        "by x / (1 + |x|)": other(lambda x: x / (1.0 + np.abs(x))),
        "by a sine": other(np.sin),
        "by tanh taken twice": other(lambda x: np.tanh(np.tanh(x))),
        "not multiplied back": lambda capped, view: capped / view.seen["softcap"],
        "only of positive scores": lambda capped, view: np.where(view.seen["scaled"] > 0, capped, view.seen["scaled"]),
    }


def _capped_without(dice: Dice) -> Fault:
    cap = dice.one_of((1.0, 3.0, 10.0))

    def capped(scores: NDArray, view: View) -> NDArray:
        return cap * np.tanh(scores / cap) if view.config.softcap is None else scores

    return Fault("softcap", (("scores", Own(f"capped at {cap:g} where no softcap is given", capped)),))


def _hidden(dice: Dice) -> Ways:
    return {
        "without tanh": lambda hidden, view: view.seen["inside"],
        "by a sigmoid": lambda hidden, view: 1.0 / (1.0 + np.exp(-view.seen["inside"])),
        "by relu": lambda hidden, view: np.maximum(view.seen["inside"], 0.0),
        "by a clip": lambda hidden, view: view.seen["inside"].clip(-1.0, 1.0),
        "by a sine": lambda hidden, view: np.sin(view.seen["inside"]),
        "by tanh of half": lambda hidden, view: np.tanh(0.5 * view.seen["inside"]),
        "times the default scale": lambda hidden, view: hidden * view.config.head_dim**-0.5,
        "of unit 0 in all": lambda hidden, view: np.broadcast_to(hidden[..., :1], hidden.shape),
    }


def _inside(dice: Dice) -> Ways:
    number = dice.one_of((0.5, 0.9, 2.0))
    return {
        f"times {number:g}": lambda inside, view: number * inside,
        "plus 0.1": lambda inside, view: inside + 0.1,
        "units in reverse": lambda inside, view: inside[..., ::-1],
        "its absolute value": lambda inside, view: np.abs(inside),
    }


def _matrices(dice: Dice) -> Ways:
    return {
        "transposed where it is square": lambda w, view: w.T if w.shape[0] == w.shape[1] else w,
        "that of the queries": lambda w, view: np.asarray(view.weights["score.query.weight"]),
        "that of the keys": lambda w, view: np.asarray(view.weights["score.key.weight"]),
        "times 0.5": lambda w, view: 0.5 * w,
        "rows in reverse": lambda w, view: w[::-1],
        "its last row 0": lambda w, view: np.where(np.arange(len(w))[:, None] == len(w) - 1, 0.0, w),
    }


def _bias(dice: Dice) -> Ways:
    return {
        "subtracted": lambda bias, view: -bias,
        "twice": lambda bias, view: 2.0 * bias,
        "times the default scale": lambda bias, view: bias * view.config.head_dim**-0.5,
        "left out": lambda bias, view: 0.0 * bias,
        "of head 0 for all": lambda bias, view: np.broadcast_to(bias[:, :1], bias.shape),
        "of item 0 for all": lambda bias, view: np.broadcast_to(bias[:1], bias.shape),
        "of the first query for all": lambda bias, view: np.broadcast_to(bias[:, :, :1], bias.shape),
        "its positive part": lambda bias, view: np.maximum(bias, 0.0),
        "clipped to 1": lambda bias, view: bias.clip(-1.0, 1.0),
        "its exponential": lambda bias, view: np.exp(bias),
        "left out where lengths are given": lambda bias, view: bias * (view.inputs.mask.valid_lens is None),
        "the mean over the heads": lambda bias, view: np.broadcast_to(bias.mean(axis=1, keepdims=True), bias.shape),
    }


def _groups(dice: Dice) -> Ways:
    def reading(number: Callable[[NDArray, View], NDArray]) -> Callable[[NDArray, View], NDArray]:
        """Which kv head each query head reads."""
        return lambda x, view: x[:, number(np.arange(view.H), view) % view.G * (view.H // view.G)]

    return {
        "tiled": reading(lambda head, view: head),
        "the first kv head for all": reading(lambda head, view: 0 * head),
        "the last kv head for all": reading(lambda head, view: 0 * head + view.G - 1),
        "the next kv head": reading(lambda head, view: head // (view.H // view.G) + 1),
        "kv heads in reverse": reading(lambda head, view: view.G - 1 - head // (view.H // view.G)),
        "one kv head further from the second query head of a group on": reading(
            lambda head, view: (head + 1) // (view.H // view.G)
        ),
        "groups of two": reading(lambda head, view: head // 2),
    }


def _vectors(dice: Dice) -> Ways:
    return {
        "of length 1": lambda x, view: x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + 1e-12),
        "less the mean of the channels": lambda x, view: x - x.mean(axis=-1, keepdims=True),
        "less the mean over the positions": lambda x, view: x - x.mean(axis=2, keepdims=True),
        "over their root mean square": lambda x, view: x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6),
        "plus 0.1": lambda x, view: x + 0.1,
        "turned by their position": _turned,
        "its last channel 0": lambda x, view: np.where(np.arange(x.shape[-1]) == x.shape[-1] - 1, 0.0, x),
        "its first channel in all": lambda x, view: np.broadcast_to(x[..., :1], x.shape),
    }


def _turned(x: NDArray, view: View) -> NDArray:
    """Pairs of channels turned by an angle of 0.1 a position."""
    if x.shape[-1] < 2:
        return x
    angle = 0.1 * np.arange(x.shape[2])[:, None]
    first, second = x[..., 0:1], x[..., 1:2]
    turned = [first * np.cos(angle) - second * np.sin(angle), first * np.sin(angle) + second * np.cos(angle)]
    return np.concatenate([*turned, x[..., 2:]], axis=-1)
