"""A change on a step of the values' way to the output, or on a parameter of it, as a bug."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.axes import axis_changes
from conformance.experiments.changes.sample import Change, Setting
from conformance.experiments.measured import PREFIX, on_parameter, on_step
from conformance.zoo.bug import Bug, DoesNotApply, OnTop
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State, Step


class Place(NamedTuple):
    """A step: how a sentence names its result, its axes, and what to do about it."""

    name: str
    axes: tuple[str, ...]
    fix: str


PLACES: dict[str, Place] = {
    "value_inputs": Place("the value input", ("item", "key", "channel"), "Project the value input as it is given."),
    "v_proj": Place("the projected values", ("item", "key", "channel"), "Compute values @ W_v^T + b_v, nothing else."),
    "new_values": Place(
        "the values split into heads",
        ("item", "kv head", "key", "channel"),
        "Split as reshape(B, L, G, dv).transpose(0, 2, 1, 3), and leave the numbers as they are.",
    ),
    "values": Place(
        "the values of all keys, also those of the past,",
        ("item", "kv head", "key", "channel"),
        "Put the values of the past in front of the new ones, and leave the numbers as they are.",
    ),
    "kept_weights": Place(
        "the weights that meet the values",
        ("item", "head", "query", "key"),
        "Multiply the softmax's weights with the values as they are.",
    ),
    "heads": Place(
        "the weighted sums of the heads",
        ("item", "head", "query", "channel"),
        "Compute weights @ values, each query head with the value head h // (H // G).",
    ),
    "merged": Place(
        "the merged heads",
        ("item", "query", "channel"),
        "Merge as transpose(0, 2, 1, 3).reshape(B, L, H * dv), and leave the numbers as they are.",
    ),
    "output": Place("the output", ("item", "query", "channel"), "Compute merged @ W_o^T + b_o, nothing else."),
}
"""Step -> its place; `values` is `new_values` with the past in front, and the same where there is none."""

BESIDE: dict[str, Place] = {
    "queries": Place(
        "the queries split into heads",
        ("item", "head", "query", "channel"),
        "Query i of the input makes query i of every head.",
    ),
    "weights": Place(
        "the weights",
        ("item", "head", "query", "key"),
        "Weights are the softmax of each row's scores, and nothing is done to them before dropout.",
    ),
    "new_keys": Place(
        "the keys split into heads",
        ("item", "kv head", "key", "channel"),
        "Key j of the input makes key j of every head, as value j makes value j.",
    ),
}
"""Steps whose order of positions can't be told from that of values, kept weights or output."""

PARAMETERS: dict[str, tuple[str, Place]] = {
    "v_proj.weight": (
        "v_proj",
        Place("the weight of v_proj", ("channel", "input channel"), "Use v_proj.weight as values @ weight.T."),
    ),
    "v_proj.bias": ("v_proj", Place("the bias of v_proj", ("channel",), "Add v_proj.bias once to each value.")),
    "out_proj.weight": (
        "output",
        Place("the weight of out_proj", ("channel", "input channel"), "Use out_proj.weight as merged @ weight.T."),
    ),
    "out_proj.bias": (
        "output",
        Place("the bias of out_proj", ("channel",), "Add out_proj.bias once, after the heads are summed."),
    ),
}
"""Name of a parameter -> the step that reads it, its place."""


def setting_of(state: State) -> Setting:
    return Setting(state.config, state.sizes)


def upper(words: str) -> str:
    """The words with a capital in front, as a sentence begins."""
    return words[:1].upper() + words[1:]


def change_on(step: str, change: Change) -> Bug:
    """A change of a step's result."""
    place = {**PLACES, **BESIDE}[step]

    def apply(state: State, array: Any) -> Any:
        return change.apply(array, place.axes, setting_of(state))

    verb = "is" if step in ("value_inputs", "output") else "are"
    sentence = f"{upper(place.name)} {verb} the definition's {change.words}."
    return on_step(step, f"{step}-{change.slug}", apply, sentence, place.fix)


READERS: dict[str, tuple[str, ...]] = {"keys": ("additive_hidden", "unscaled"), "values": ("heads",)}
"""What is repeated for the query heads -> the steps that read it."""


def read_otherwise(what: str, change: Change) -> Bug:
    """A change of the keys, or of the values, that each query head reads: of (B, H, Lk, channels)."""
    axes = ("item", "head", "position" if what == "keys" else "key", "channel")

    def reading(state: State, beneath: Step) -> Any:
        changed = change.apply(state.heads_of(what), axes, setting_of(state))
        if changed.shape[1] != state.config.num_heads:
            raise DoesNotApply("there is one for each query head")
        return beneath(replace(state, arrays={**state.arrays, what: changed}))

    return Bug(
        f"{PREFIX}{what}-read-{change.slug}",
        f"The {what} that each query head reads are the definition's {change.words}.",
        "scores" if what == "keys" else "heads",
        f"Query head h reads {what[:-1]} head h // (H // G), as it is.",
        forward={step: OnTop(FORWARD[step], reading) for step in READERS[what]},
    )


def parameter_on(name: str, slug: str, change: Callable[[State, NDArray], NDArray], words: str) -> Bug:
    """A parameter read otherwise; `words` follow "is used"."""
    step, place = PARAMETERS[name]
    sentence = f"{upper(place.name)} is used {words}."
    return on_parameter(step, name, f"{name.replace('.', '-')}-{slug}", change, sentence, place.fix)


def change_of_parameter(name: str, change: Change) -> Bug:
    """A change of a parameter."""
    axes = PARAMETERS[name][1].axes

    def apply(state: State, array: NDArray) -> NDArray:
        return same_shape(array, change.apply(array, axes, setting_of(state)))

    return parameter_on(name, change.slug, apply, change.words)


def same_shape(array: NDArray, changed: NDArray) -> NDArray:
    """The changed array; raises DoesNotApply where it no longer fits."""
    if np.shape(changed) != array.shape:
        raise DoesNotApply(f"a parameter of shape {np.shape(changed)} does not fit where {array.shape} is needed")
    return changed


def positions_on(steps: Iterable[str]) -> Iterator[Bug]:
    """Every other order of the queries or keys of these steps."""
    for step in steps:
        for change in axis_changes(BESIDE[step].axes):
            if change.slug.startswith(("query-", "key-")):
                yield change_on(step, change)
