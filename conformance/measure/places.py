"""Places: where an array of the definition stands that may be another one; one table.

A place is the result of a step, or what a step reads: a parameter, a number of the config, a mask, a past.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from conformance.measure import reads
from conformance.measure.faults import (
    STEP_AXES,
    bug_of,
    stage_of,
)
from conformance.measure.grammar.sample import Change, Setting
from conformance.measure.reads import Get, Put
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.forward import PROJECTED
from mha_core.reference.state import State, Step


def _result(state: State, beneath: Step) -> Any:
    return beneath(state)


def _in_its_place(state: State, beneath: Step, array: Any) -> Any:
    return array


@dataclass(frozen=True, eq=False)
class Place:
    """One place.

    Args:
        id: the step, or the name of what a step reads.
        words: what stands there, as the subject of a sentence in the plural.
        axes: of the array. Default: those of the step.
        fix: what to do where it is wrong.
        steps: the steps that give or read it. Default: the step of this name.
        get: (state, the step beneath) -> the array; None where there is none. Default: the step's result.
        put: (state, the step beneath, another array) -> the step's result with it. Default: the array.
        gauge: the axis along which a number that is the same for all elements changes no output; None: there is none.
        stage: where a change first shows. Default: that of the first step.
    """

    id: str
    words: str
    fix: str
    axes: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    get: Get = _result
    put: Put = _in_its_place
    gauge: int | None = None
    stage: str = ""

    def __post_init__(self) -> None:
        steps = self.steps or (self.id,)
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "axes", self.axes or STEP_AXES[steps[0]])
        object.__setattr__(self, "stage", self.stage or stage_of(steps[0]))

    @cached_property
    def is_result(self) -> bool:
        """Whether it is what a step gives, and not what one reads."""
        return self.put is _in_its_place

    def with_array(self, array: Any) -> dict[str, Callable[[State, Step], Any]]:
        """Step -> its change to one that has this array."""
        return dict.fromkeys(self.steps, lambda state, beneath: self.put(state, beneath, array))


def fault(place: Place, change: Change, *, at: str = "") -> Bug:
    """The bug of another array at a place.

    Args:
        place: where.
        change: what is done to the array; a Where is part of it.
        at: what stands before its sentence, such as "In calls with a past: ".
    """

    def changed(state: State, beneath: Step) -> Any:
        array = place.get(state, beneath)
        if array is None:
            return beneath(state)
        array = np.asarray(array)
        if array.ndim != len(place.axes):
            raise DoesNotApply(f"{place.words} have other axes here")
        made = change.apply(array, place.axes, Setting.of(state))
        if not place.is_result and np.shape(made) != array.shape:
            raise DoesNotApply(f"an array of shape {np.shape(made)} does not fit where {array.shape} is needed")
        return place.put(state, beneath, made)

    words = place.words[0].upper() + place.words[1:]
    sentence = f"{at}{words} are the definition's {change.words}."
    slug = f"{place.id.replace('_', '-').replace('.', '-')}-{change.slug}"
    return bug_of(slug, sentence, place.fix, dict.fromkeys(place.steps, changed), stage=place.stage)


# The table ------------------------------------------------------------------------------------------------

OF_INPUT = "Project each input as it is given."
OF_WEIGHT = "A weight is (out, in), W and b of its own projection: compute x @ W.T + b."
OF_SPLIT = "Split as reshape(B, L, H, d).transpose(0, 2, 1, 3), and leave the numbers as they are."
OF_PAST = "Keys and values are those of the past, as they are given, and behind them the new ones."
OF_READ = "Query head h reads key/value head h // (H // G), as it is."
OF_SCORES = "Compute queries @ keys^T, (B, H, Lq, Lk), times the config's softmax_scale."
OF_ADDITIVE = "score = vector . tanh(A query + C key), A = score.query.weight, C = score.key.weight."
OF_CAP = "The scaled score becomes c * tanh(score / c), before bias and exclusion."
OF_SUM = "Add the bias to the scaled and capped scores, as it is, before the softmax."
OF_WEIGHTS = "Weights are exp(score - maximum of the row) over their sum over the row's allowed keys, and nothing else."
OF_DROPOUT = (
    "Multiply the weights after the softmax by keep / (1 - p), element by element, and only where a keep-mask is given."
)
OF_HEADS = "Compute weights @ values, each query head with the value head h // (H // G)."
OF_MERGED = "Merge as transpose(0, 2, 1, 3).reshape(B, L, H * dv), and leave the numbers as they are."
OF_OUTPUT = "Compute merged @ W_o^T + b_o, nothing else."

MATRIX, VECTOR, SCORED = ("output channel", "input channel"), ("output channel",), ("item", "head", "query", "key")
JOINED = ("item", "kv head", "key", "channel")
READ = ("item", "head", "key", "channel")


def _of_projections() -> list[Place]:
    found = []
    for projection, (_, step) in PROJECTED.items():
        for kind, axes in (("weight", MATRIX), ("bias", VECTOR)):
            get, put = reads.parameter(f"{projection}.{kind}")
            words = f"the numbers of {projection}.{kind}, as used,"
            found.append(Place(f"{projection}.{kind}", words, OF_WEIGHT, axes, (step,), get, put))
    return found


def _table() -> list[Place]:
    additive = ("additive_hidden",)
    return [
        Place("output", "the output's numbers", OF_OUTPUT),
        Place("merged", "the merged heads", OF_MERGED),
        Place("heads", "the weighted sums of the heads", OF_HEADS),
        Place("kept_weights", "the weights that meet the values", "Multiply the softmax's weights with the values."),
        Place(
            "dropout", "the factors of dropout", OF_DROPOUT, SCORED, ("kept_weights",), reads.keep, reads.with_factor
        ),
        Place("weights", "the weights", OF_WEIGHTS),
        Place(
            "sums",
            "the sums of a row's exponentials",
            OF_WEIGHTS,
            SCORED[:3],
            ("weights",),
            reads.sums,
            reads.over_sums,
        ),
        Place(
            "values read",
            "the values that each query head reads",
            OF_READ,
            READ,
            ("heads",),
            *reads.read_by_heads("values"),
        ),
        Place("values", "the values of all keys, also those of a past,", OF_PAST),
        Place("past_values", "the past values", OF_PAST, JOINED, ("values",), *reads.past("past_values")),
        Place("new_values", "the values split into heads", OF_SPLIT),
        Place("v_proj", "the projected values", OF_WEIGHT),
        Place("value_inputs", "the inputs that values are projected from", OF_INPUT),
        Place("scores", "scores with the additive bias", OF_SUM, gauge=-1),
        Place(
            "bias",
            "the numbers of the additive bias, as they are added,",
            OF_SUM,
            SCORED,
            ("scores",),
            reads.bias,
            reads.with_bias,
            -1,
        ),
        Place("capped", "scores after the softcap", OF_CAP, gauge=-1),
        Place(
            "fraction",
            "scores over the softcap",
            OF_CAP,
            SCORED,
            ("capped",),
            reads.capped_fraction,
            reads.of_fraction,
            -1,
        ),
        Place(
            "softcap",
            "softcaps",
            OF_CAP,
            ("number",),
            ("capped",),
            reads.softcap,
            partial(reads.with_number, "softcap"),
        ),
        Place("similarity", "scores", OF_SCORES, gauge=-1),
        Place(
            "scale",
            "the scores' scales",
            OF_SCORES,
            ("number",),
            ("similarity",),
            reads.scale,
            partial(reads.with_number, "scale"),
        ),
        Place("unscaled", "scores before the scale", OF_SCORES, gauge=-1),
        Place("additive_hidden", "hidden units of the additive score", OF_ADDITIVE),
        Place(
            "additive inside",
            "hidden units of the additive score, before their tanh,",
            OF_ADDITIVE,
            (*SCORED, "hidden"),
            additive,
            reads.inside,
            lambda state, beneath, array: np.tanh(array),
        ),
        *(
            Place(name, f"the numbers of {name}, as used,", OF_ADDITIVE, axes, (step,), *reads.parameter(name))
            for name, axes, step in (
                ("score.query.weight", MATRIX, "additive_hidden"),
                ("score.key.weight", MATRIX, "additive_hidden"),
                ("score.vector", VECTOR, "unscaled"),
            )
        ),
        Place(
            "keys read",
            "the keys that each query head reads",
            OF_READ,
            READ,
            ("additive_hidden", "unscaled"),
            *reads.read_by_heads("keys"),
            -2,
        ),
        Place("keys", "keys, also those of a past,", OF_PAST, gauge=-2),
        Place("past_keys", "the past keys", OF_PAST, JOINED, ("keys",), *reads.past("past_keys"), -2),
        Place("new_keys", "keys, split into heads,", OF_SPLIT, gauge=-2),
        Place("k_proj", "projected keys", OF_WEIGHT, gauge=-2),
        Place("key_inputs", "the inputs that keys are projected from", OF_INPUT, gauge=-2),
        Place("queries", "queries, split into heads,", OF_SPLIT),
        Place("q_proj", "projected queries", OF_WEIGHT),
        Place("query_inputs", "the inputs that queries are projected from", OF_INPUT),
        *_of_projections(),
    ]


PLACES: Mapping[str, Place] = {place.id: place for place in _table()}
"""Id -> place, the latest first; those of the mask are in `propose/masks`, those of gradients in `read/backward`."""

BEFORE_SOFTMAX = frozenset(
    (
        *("scores", "bias", "capped", "fraction", "softcap", "similarity", "scale", "unscaled", "additive_hidden"),
        *(
            "additive inside",
            "score.query.weight",
            "score.key.weight",
            "score.vector",
            "keys read",
            "keys",
            "past_keys",
        ),
        *("new_keys", "k_proj", "key_inputs", "queries", "q_proj", "query_inputs", "q_proj.weight", "q_proj.bias"),
        *("k_proj.weight", "k_proj.bias"),
    )
)
"""Places whose arrays show in logarithms of weights."""

OF_VALUES = frozenset(
    ("values read", "values", "past_values", "new_values", "v_proj", "value_inputs", "v_proj.weight", "v_proj.bias")
)
