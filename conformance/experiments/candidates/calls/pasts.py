"""Pasts: what may befall the past keys or values, the new ones beside a past, and how both are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.changes.axes import axis_changes
from conformance.experiments.changes.sample import Change, Setting
from conformance.experiments.measured import around
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core import AttentionInputs
from mha_core.reference.state import State, Step

AXES = ("item", "kv head", "key", "channel")
"""Of past, new and joined keys and values."""

PAST = {"keys": "past_keys", "values": "past_values"}
"""Step that joins them -> the input."""

FIX = "Keys and values are those of the past, as they are given, and behind them the new ones."


def on_past(step: str, change: Change, *, padding_first: bool = False) -> Bug:
    """A change of the past keys or values.

    Args:
        step: "keys" or "values".
        change: of an array (B, G, Lp, width).
        padding_first: whether padding is replaced by 0 before the change, not after it.
    """

    def changed(state: State, beneath: Step) -> NDArray:
        past = getattr(state.inputs, PAST[step])
        if past is None or not past.size:
            return np.asarray(beneath(state))
        arrays = dict(state.arrays)
        if padding_first:
            past = np.where(state["padding"][:, None, : state.sizes.past_len, None], 0.0, past)
            arrays["padding"] = np.zeros_like(state["padding"])
        past = _same_shape(change.apply(past, AXES, Setting(state.config, state.sizes)), past)
        return np.asarray(beneath(replace(state, inputs=_with_past(state, step, past), arrays=arrays)))

    suffix = "-padding-first" if padding_first else ""
    return around(step, f"past-{step}-{change.slug}{suffix}", changed, f"The past {step} are {change.words}.", FIX)


def on_new(step: str, change: Change) -> Bug:
    """A change of the new keys or values in calls with a past."""

    def changed(state: State, beneath: Step) -> NDArray:
        joined, past_len = np.asarray(beneath(state)), state.sizes.past_len
        if not past_len:
            return joined
        new = joined[:, :, past_len:]
        new = _same_shape(change.apply(new, AXES, Setting(state.config, state.sizes)), new)
        return np.concatenate([joined[:, :, :past_len], new], axis=2)

    words = f"The new {step} behind a past are the definition's {change.words}."
    return around(step, f"new-{step}-behind-past-{change.slug}", changed, words, FIX)


def on_joined(step: str, change: Change) -> Bug:
    """A change of all keys or values in calls with a past."""

    def changed(state: State, beneath: Step) -> NDArray:
        joined = np.asarray(beneath(state))
        if not state.sizes.past_len:
            return joined
        return _same_shape(change.apply(joined, AXES, Setting(state.config, state.sizes)), joined)

    words = f"The {step} of calls with a past are the definition's {change.words}."
    return around(step, f"{step}-with-past-{change.slug}", changed, words, FIX)


def _with_past(state: State, step: str, past: NDArray) -> AttentionInputs:
    given: dict[str, Any] = {PAST[step]: past}
    return replace(state.inputs, **given)


def _same_shape(array: NDArray, like: NDArray) -> NDArray:
    if np.shape(array) != like.shape:
        raise DoesNotApply("the past keeps its shape")
    return array


# Joined otherwise ---------------------------------------------------------------------------------

Joined = Callable[[NDArray, NDArray], NDArray]
"""(past (B, G, Lp, width), new (B, G, Ln, width), neither empty) -> all of them, (B, G, Lp + Ln, width)."""


def _interleaved(past: NDArray, new: NDArray) -> NDArray:
    order = np.argsort(np.r_[2 * np.arange(past.shape[2]), 2 * np.arange(new.shape[2]) + 1], kind="stable")
    return np.concatenate([past, new], axis=2)[:, :, order]


def _first_written(past: NDArray, new: NDArray) -> NDArray:
    return np.concatenate([past, past[:, :, -1:], new[:, :, 1:]], axis=2)


def _last_written(past: NDArray, new: NDArray) -> NDArray:
    return np.concatenate([past[:, :, :-1], new[:, :, :1], new], axis=2)


def _one_early(past: NDArray, new: NDArray) -> NDArray:
    return np.concatenate([past[:, :, :-1], new, np.zeros_like(past[:, :, :1])], axis=2)


def _one_late(past: NDArray, new: NDArray) -> NDArray:
    return np.concatenate([past, np.zeros_like(past[:, :, :1]), new[:, :, :-1]], axis=2)


def _written_at_start(past: NDArray, new: NDArray) -> NDArray:
    both = np.concatenate([past, np.zeros_like(new)], axis=2)
    both[:, :, : new.shape[2]] = new
    return both


JOINED: dict[str, tuple[str, Joined]] = {
    "past-behind": ("the past stands behind the new ones", lambda past, new: np.concatenate([new, past], axis=2)),
    "new-reversed": (
        "the new ones stand in reverse order behind a past",
        lambda past, new: np.concatenate([past, new[:, :, ::-1]], axis=2),
    ),
    "all-reversed": (
        "past and new ones together stand in reverse order",
        lambda past, new: np.concatenate([past, new], axis=2)[:, :, ::-1],
    ),
    "interleaved": ("past and new ones stand in turn", _interleaved),
    "first-new-is-last-past": ("the first new one is replaced by the last of the past", _first_written),
    "last-past-is-first-new": ("the last of the past is replaced by the first new one", _last_written),
    "written-one-early": ("the new ones begin one place early, over the last of the past", _one_early),
    "written-one-late": ("the new ones begin one place late", _one_late),
    "written-at-start": ("the new ones are written over the first places", _written_at_start),
    "past-repeated": (
        "the last of the past stands in all of its places",
        lambda past, new: np.concatenate([np.broadcast_to(past[:, :, -1:], past.shape), new], axis=2),
    ),
    "past-without-newest": (
        "the last of the past is 0",
        lambda past, new: np.concatenate([past[:, :, :-1], 0.0 * past[:, :, -1:], new], axis=2),
    ),
    "past-without-oldest": (
        "the first of the past is 0",
        lambda past, new: np.concatenate([0.0 * past[:, :, :1], past[:, :, 1:], new], axis=2),
    ),
    "new-for-past": (
        "the first new one stands in all places of the past",
        lambda past, new: np.concatenate([np.broadcast_to(new[:, :, :1], past.shape), new], axis=2),
    ),
    "past-plus-mean-of-new": (
        "the mean of the new ones is added to the past",
        lambda past, new: np.concatenate([past + new.mean(axis=2, keepdims=True), new], axis=2),
    ),
    "past-doubled": ("the past is added to itself", lambda past, new: np.concatenate([2.0 * past, new], axis=2)),
}
"""Name -> (words, what stands at the keys' places)."""


def joined_otherwise(steps: tuple[str, ...]) -> Iterator[Bug]:
    """Every other way of joining, of keys or values alone."""
    for step in steps:
        for slug, (words, join) in JOINED.items():
            yield around(step, f"{step}-{slug}", _by(join), f"Of the {step}, {words}.", FIX)


def _by(join: Joined) -> Callable[[State, Step], NDArray]:
    def changed(state: State, beneath: Step) -> NDArray:
        joined, past_len = np.asarray(beneath(state)), state.sizes.past_len
        if not 0 < past_len < joined.shape[2]:
            return joined
        return _same_shape(join(joined[:, :, :past_len], joined[:, :, past_len:]), joined)

    return changed


def exchanged_pasts() -> Iterator[Bug]:
    """Past keys in the place of past values, and the other way round, where they are of one width."""
    for step, other in (("keys", "past_values"), ("values", "past_keys")):

        def changed(state: State, beneath: Step, step: str = step, other: str = other) -> NDArray:
            past, own = getattr(state.inputs, other), getattr(state.inputs, PAST[step])
            if past is None or own is None:
                return np.asarray(beneath(state))
            inputs = _with_past(state, step, _same_shape(past, own))
            return np.asarray(beneath(replace(state, inputs=inputs)))

        words = f"The past {step} are the {other}."
        yield around(step, f"past-{step}-are-{other.replace('_', '-')}", changed, words, FIX)


def orders_of_past(step: str, problems: Sequence[Problem]) -> Iterator[Bug]:
    """Every other order of every axis of the past that is another one in some of the problems."""
    for change in axis_changes(AXES):
        if any(_reorders(change, problem) for problem in problems):
            yield on_past(step, change)
            yield on_past(step, change, padding_first=True)


def _reorders(change: Change, problem: Problem) -> bool:
    """Whether it is an order of several places that moves something, so that a call of these sizes can show it."""
    config, sizes = problem.config, problem.sizes
    if sizes.batch == 1 and change.slug.startswith("item-"):
        return False
    shape = (sizes.batch, config.num_kv_heads, sizes.past_len, config.head_dim)
    places = np.arange(float(np.prod(shape))).reshape(shape)
    try:
        return not np.array_equal(change.apply(places, AXES, Setting(config, sizes)), places)
    except DoesNotApply:
        return False
