"""Places: where an array of the definition stands that may be another one; one table.

A place is the result of a step, or what a step reads: a parameter, a number of the config, a mask, a past.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from conformance.measure import reads
from conformance.measure.faults import STEP_AXES, bug_of, stage_of
from conformance.measure.grammar.sample import Change, Setting
from conformance.measure.reads import Get, Put
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.forward import PROJECTED
from mha_core.reference.state import State, Step


def _result(state: State, beneath: Step) -> Any:
    return beneath(state)


def _in_its_place(state: State, beneath: Step, array: Any) -> Any:
    return array


Axes = tuple[str, ...]


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
    axes: Axes = ()
    steps: Axes = ()
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

FIX: Mapping[str, str] = {
    "input": "Project each input as it is given.",
    "weight": "A weight is (out, in), W and b of its own projection: compute x @ W.T + b.",
    "split": "Split as reshape(B, L, H, d).transpose(0, 2, 1, 3), and leave the numbers as they are.",
    "past": "Keys and values are those of the past, as they are given, and behind them the new ones.",
    "read": "Query head h reads key/value head h // (H // G), as it is.",
    "scores": "Compute queries @ keys^T, (B, H, Lq, Lk), times the config's softmax_scale.",
    "additive": "score = vector . tanh(A query + C key), A = score.query.weight, C = score.key.weight.",
    "cap": "The scaled score becomes c * tanh(score / c), before bias and exclusion.",
    "sum": "Add the bias to the scaled and capped scores, as it is, before the softmax.",
    "weights": (
        "Weights are exp(score - maximum of the row) over their sum over the row's allowed keys, and nothing else."
    ),
    "kept": "Multiply the softmax's weights with the values.",
    "dropout": (
        "Multiply the weights after the softmax by keep / (1 - p), element by element, and only where a keep-mask is "
        "given."
    ),
    "heads": "Compute weights @ values, each query head with the value head h // (H // G).",
    "merged": "Merge as transpose(0, 2, 1, 3).reshape(B, L, H * dv), and leave the numbers as they are.",
    "output": "Compute merged @ W_o^T + b_o, nothing else.",
}
"""Name -> what to do where places are wrong."""

SCORED = ("item", "head", "query", "key")
_MATRIX, _VECTOR = ("output channel", "input channel"), ("output channel",)
_JOINED, _READ = ("item", "kv head", "key", "channel"), ("item", "head", "key", "channel")
_NUMBER = ("number",)


def _parameter(name: str, fix: str, axes: Axes, step: str) -> Place:
    return Place(name, f"the numbers of {name}, as used,", FIX[fix], axes, (step,), *reads.parameter(name))


def _result_of(step: str, words: str, fix: str, gauge: int | None = None) -> Place:
    return Place(step, words, FIX[fix], gauge=gauge)


_PLACES = (
    _result_of("output", "the output's numbers", "output"),
    _result_of("merged", "the merged heads", "merged"),
    _result_of("heads", "the weighted sums of the heads", "heads"),
    _result_of("kept_weights", "the weights that meet the values", "kept"),
    Place("dropout", "the factors of dropout", FIX["dropout"], SCORED, ("kept_weights",), *reads.KEEP),
    _result_of("weights", "the weights", "weights"),
    Place("sums", "the sums of a row's exponentials", FIX["weights"], SCORED[:3], ("weights",), *reads.SUMS),
    Place(
        *("values read", "the values that each query head reads", FIX["read"], _READ, ("heads",)),
        *reads.read_by_heads("values"),
    ),
    _result_of("values", "the values of all keys, also those of a past,", "past"),
    Place("past_values", "the past values", FIX["past"], _JOINED, ("values",), *reads.past("past_values")),
    _result_of("projected_values", "the values split into heads", "split"),
    _result_of("v_proj", "the projected values", "weight"),
    _result_of("value_inputs", "the inputs that values are projected from", "input"),
    _result_of("scores", "scores with the additive bias", "sum", -1),
    Place(
        *("bias", "the numbers of the additive bias, as they are added,", FIX["sum"], SCORED, ("scores",)),
        *reads.BIAS,
        gauge=-1,
    ),
    _result_of("capped", "scores after the softcap", "cap", -1),
    Place("fraction", "scores over the softcap", FIX["cap"], SCORED, ("capped",), *reads.FRACTION, -1),
    Place("softcap", "softcaps", FIX["cap"], _NUMBER, ("capped",), *reads.SOFTCAP),
    _result_of("similarity", "scores", "scores", -1),
    Place("scale", "the scores' scales", FIX["scores"], _NUMBER, ("similarity",), *reads.SCALE),
    _result_of("unscaled", "scores before the scale", "scores", -1),
    _result_of("additive_hidden", "hidden units of the additive score", "additive"),
    Place(
        *("additive inside", "hidden units of the additive score, before their tanh,", FIX["additive"]),
        *((*SCORED, "hidden"), ("additive_hidden",)),
        *reads.INSIDE,
    ),
    _parameter("score.query.weight", "additive", _MATRIX, "additive_hidden"),
    _parameter("score.key.weight", "additive", _MATRIX, "additive_hidden"),
    _parameter("score.vector", "additive", _VECTOR, "unscaled"),
    Place(
        *("keys read", "the keys that each query head reads", FIX["read"], _READ, ("additive_hidden", "unscaled")),
        *reads.read_by_heads("keys"),
        gauge=-2,
    ),
    _result_of("keys", "keys, also those of a past,", "past", -2),
    Place("past_keys", "the past keys", FIX["past"], _JOINED, ("keys",), *reads.past("past_keys"), -2),
    _result_of("new_keys", "keys, split into heads,", "split", -2),
    _result_of("k_proj", "projected keys", "weight", -2),
    _result_of("key_inputs", "the inputs that keys are projected from", "input", -2),
    _result_of("queries", "queries, split into heads,", "split"),
    _result_of("q_proj", "projected queries", "weight"),
    _result_of("query_inputs", "the inputs that queries are projected from", "input"),
    *(
        _parameter(f"{projection}.{kind}", "weight", axes, step)
        for projection, (_, step) in PROJECTED.items()
        for kind, axes in (("weight", _MATRIX), ("bias", _VECTOR))
    ),
)


PLACES: Mapping[str, Place] = {place.id: place for place in _PLACES}
"""Id -> place, the latest first; those of the mask are in `propose/masks`, those of gradients in `read/backward`."""


def _between(first: str, last: str, *projections: str) -> frozenset[str]:
    ids = list(PLACES)
    parameters = (f"{projection}.{kind}" for projection in projections for kind in ("weight", "bias"))
    return frozenset((*ids[ids.index(first) : ids.index(last) + 1], *parameters))


BEFORE_SOFTMAX = _between("scores", "query_inputs", "q_proj", "k_proj")
"""Places whose arrays show in logarithms of weights."""

OF_VALUES = _between("values read", "value_inputs", "v_proj")
