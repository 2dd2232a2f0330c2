"""Places: a table of the arrays in the definition that a bug may change.

A place is the result of a step, or what a step reads: a parameter, a number of the config, a bias, a past.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.kinds.change import Change, Setting
from conformance.kinds.made import bug_of, stage_of, with_inputs, with_parameters
from conformance.kinds.published import cosines, nearness
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core import STAGES, SpecError
from mha_core.call.masks import additive_bias
from mha_core.reference.forward import PROJECTED, dropout_factor
from mha_core.reference.state import State, Step

Axes = tuple[str, ...]
Get = Callable[[State, Step], Any]
Put = Callable[[State, Step, Any], Any]


def _in_its_place(state: State, beneath: Step, array: Any) -> Any:
    return array


OF_DOT = "Take the scaled products of queries and keys."
ROOTS = {"multiplied by 1 / sqrt(scale)": "replaced by its square root", "multiplied by scale": "squared"}
OF_SCALE = "Multiply scores by the given scale, or by 1 / sqrt(head_dim) without one."
OF_CAP = "Use the given softcap itself as c{}."
ARE, IS = "{} are {}.", "{} is {}."


@dataclass(frozen=True, eq=False)
class Place:
    """An array of the forward computation that a bug may change.

    Args:
        id: the step whose result the array is, or the name of an array that a step reads.
        words: the array in words, as the subject of a sentence in the plural.
        axes: names of the array's axes.
        step: the step that returns or reads the array. Default: `id`.
        get: (state, step without the bug) -> the array; None where there is none. Default: the step's result.
        put: (state, step without the bug, changed array) -> the step's new result. Default: the changed array.
        gauge: an axis. Adding one number to all elements along it changes no output. None: there is no such axis.
        says: a format for `words` and the words of the change, such as "{} are {}.".
    """

    id: str
    words: str
    axes: Axes
    step: str = ""
    get: Get = lambda state, beneath: beneath(state)
    put: Put = _in_its_place
    gauge: int | None = None
    says: str = ARE

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", self.step or self.id)

    @property
    def is_result(self) -> bool:
        """Return whether the array is a step's result, and not something that a step reads."""
        return self.put is _in_its_place

    @property
    def stage(self) -> str:
        """Return the first stage that shows a change of the array."""
        return stage_of(self.step)


def fault(place: Place, change: Change) -> Bug:
    """Return the bug that changes the array of one Place."""

    def changed(state: State, beneath: Step) -> Any:
        array = place.get(state, beneath)
        if array is None:
            return beneath(state)
        array = np.asarray(array)
        if array.ndim != len(place.axes):
            raise DoesNotApply(f"{place.words} have other axes here")
        made = change.made(array, place.axes, Setting.of(state))
        if not place.is_result and np.shape(made) != array.shape:
            raise DoesNotApply(f"an array of shape {np.shape(made)} does not fit where {array.shape} is needed")
        return place.put(state, beneath, made)

    sentence = place.says.format(
        place.words, ROOTS.get(change.words, change.words) if place.id == "scale" else change.words
    )
    slug = f"{place.id.replace('_', '-').replace('.', '-')}-{change.slug}"
    in_base_2 = change.words.endswith((" ln 2", " log2 e"))
    of_numbers = {"scale": OF_SCALE, "softcap": OF_CAP.format(", and turn scores to base 2 after it" * in_base_2)}
    of_numbers |= dict.fromkeys(("cosines", "nearness"), OF_DOT)
    return bug_of(slug, sentence[0].upper() + sentence[1:], of_numbers.get(place.id, change.fix), {place.step: changed})


OF_PROJECTIONS = "the projected "


def fault_of_all(places: Sequence[Place], change: Change) -> Bug:
    """Return the bug that makes the same change at several Places."""
    bugs = [fault(place, change) for place in places]
    *names, last = [place.words for place in sorted(places, key=lambda place: STAGES.index(place.stage))]
    words = f"{', '.join(names)} and {last}"
    if all(one.startswith(OF_PROJECTIONS) for one in (*names, last)):  # "the projected queries and keys"
        words = OF_PROJECTIONS + words.replace(OF_PROJECTIONS, "")
    steps = {name: step for bug in bugs for name, step in bug.forward.items()}
    first = min((bug.stage for bug in bugs), key=STAGES.index)
    sentence = ARE.format(f"{words[0].upper()}{words[1:]}", change.words)
    id = "-and-".join(bug.id for bug in bugs)
    return replace(bugs[0], id=id, sentence=sentence, stage=first, fix=change.fix, forward=steps)


def _parameter(name: str) -> tuple[Get, Put]:
    def put(state: State, beneath: Step, array: Any) -> Any:
        given = name in state.parameters
        return beneath(with_parameters(state, {name: np.asarray(array)}) if given else state)

    return lambda state, beneath: state.parameters.get(name), put


def _number(name: str, get: Callable[[Any], Any]) -> tuple[Get, Put]:
    def put(state: State, beneath: Step, array: Any) -> Any:
        found = state.copy()
        try:
            given: dict[str, Any] = {name: float(array[0])}
            found.config = replace(state.config, **given)
        except SpecError as error:
            raise DoesNotApply(str(error)) from error
        return beneath(found)

    return lambda state, beneath: None if (n := get(state.config)) is None else np.array([n]), put


def _bias(state: State, beneath: Step) -> Any:
    mask = state.inputs.mask
    return None if mask.bias is None else np.broadcast_to(additive_bias(mask), state["capped"].shape)


def _with_bias(state: State, beneath: Step, array: Any) -> Any:
    return beneath(with_inputs(state, bias=array)) if state.inputs.mask.bias is not None else beneath(state)


def _past(name: str) -> tuple[Get, Put]:
    def get(state: State, beneath: Step) -> Any:
        past = getattr(state.inputs, name)
        return past if past is not None and past.size else None

    def put(state: State, beneath: Step, array: Any) -> Any:
        return beneath(with_inputs(state, **{name: array}))

    return get, put


def _keep(state: State, beneath: Step) -> Any:
    if state.inputs.dropout_keep is None or not state["weights"].size:
        return None
    return np.broadcast_to(dropout_factor(state), state["weights"].shape)


SCORED = ("item", "head", "query", "key")
_QUERIED, _KEYED = ("item", "query", "channel"), ("item", "new key", "channel")
_BY_QUERY, _BY_KEY = ("item", "head", "query", "channel"), ("item", "kv head", "key", "channel")
_BY_NEW_KEY = ("item", "kv head", "new key", "channel")
_ONE = ("number",)

OF_PRODUCTS = "Scores are {}, {}, in place of their scaled product."

PLACES: Mapping[str, Place] = {
    place.id: place
    for place in (
        Place("output", "the output's numbers", _QUERIED),
        Place("merged", "the merged heads", _QUERIED),
        Place("heads", "the heads' outputs (attention weights @ values)", _BY_QUERY),
        Place("kept_weights", "the attention weights that multiply the values", SCORED),
        Place(
            *("dropout", "the factors of dropout, keep / (1 - p),", SCORED, "kept_weights", _keep),
            lambda state, beneath, array: state["weights"] * array,
        ),
        Place("weights", "the attention weights", SCORED),
        Place("values", "all values (new and past)", _BY_KEY),
        Place("past_values", "the past values", _BY_KEY, "values", *_past("past_values")),
        Place("projected_values", "the projected values", _BY_NEW_KEY),
        Place("value_inputs", "the inputs that values are projected from", _KEYED),
        Place("scores", "scores and their additive bias", SCORED, gauge=-1),
        Place("bias", "the numbers of the additive bias as they are added", SCORED, "scores", _bias, _with_bias, -1),
        Place("capped", "scores after the softcap", SCORED, gauge=-1),
        Place(
            "softcap",
            "the cap c of c * tanh(score / c)",
            _ONE,
            "capped",
            *_number("softcap", lambda config: config.softcap),
            says=IS,
        ),
        Place("similarity", "scores", SCORED, gauge=-1),
        *(
            Place(name, words, SCORED, "similarity", get, lambda state, beneath, array: array, -1, OF_PRODUCTS)
            for name, words, get in (
                ("cosines", "the cosines of queries and keys", cosines),
                ("nearness", "-|q - k|^2 of queries and keys", nearness),
            )
        ),
        Place(
            *("scale", "the scale of the scores", _ONE, "similarity"),
            *_number("scale", lambda config: config.softmax_scale if config.score == "scaled_dot" else None),
            says=IS,
        ),
        Place("keys", "all keys (new and past)", _BY_KEY, gauge=-2),
        Place("past_keys", "the past keys", _BY_KEY, "keys", *_past("past_keys")),  # new keys show a shift of them
        Place("new_keys", "the projected keys", _BY_NEW_KEY, gauge=-2),
        Place("key_inputs", "the inputs that keys are projected from", _KEYED, gauge=-2),
        Place("queries", "the projected queries", _BY_QUERY),
        Place("query_inputs", "the inputs that queries are projected from", _QUERIED),
        *(
            Place(
                f"{name}.bias",
                f"the numbers of {name}.bias",
                ("output channel",),
                step,
                *_parameter(f"{name}.bias"),
            )
            for name, (_, step) in PROJECTED.items()
        ),
    )
}
"""Id -> place, the latest first."""


def _between(first: str, last: str) -> frozenset[str]:
    ids = list(PLACES)
    return frozenset(ids[ids.index(first) : ids.index(last) + 1])


BEFORE_SOFTMAX = _between("scores", "query_inputs") | {"q_proj.bias", "k_proj.bias"}
"""Places whose arrays show in logarithms of weights."""

OF_VALUES = _between("values", "value_inputs") | {"v_proj.bias"}
AFTER_WEIGHTS = frozenset(("heads", "merged", "output"))

ALIKE: Mapping[str, tuple[str, ...]] = {
    "past_values": ("past_keys",),
    "values": ("keys", "queries"),
    "projected_values": ("new_keys", "queries"),
    "value_inputs": ("key_inputs", "query_inputs"),
}
"""Place of values -> those of keys and of queries that the same function may have made."""
