"""Places: the steps from the inputs to the scores where a change may be put, with the names of their axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.changes.axes import axis_changes, exchange, order_change
from conformance.experiments.changes.sample import Change, Setting
from conformance.experiments.measured import around, on_parameter, on_step, with_mask
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.call.masks import additive_bias
from mha_core.reference.state import State, Step

BIAS = "mask.bias"
INNER = "inside"


def always(state: State) -> bool:
    return True


@dataclass(frozen=True)
class Place:
    """A step's result, or a parameter that it reads.

    Args:
        step: the step.
        axes: of its array.
        name: what the array is called in a sentence, as a plural.
        fix: what to do where it is wrong.
        own: those of the axes where changes are tried; a change along others is one of another place as well.
        parameter: the parameter that is changed instead of the step's result; BIAS is the mask's additive bias, INNER
            what the step takes the tanh of.
        when: whether it is wrong in a layer; what other layers do has been seen by then.
        label: what is before its name in ids, where `when` is given.
    """

    step: str
    axes: tuple[str, ...]
    name: str
    fix: str
    own: tuple[str, ...]
    parameter: str = ""
    when: Callable[[State], bool] = always
    label: str = ""

    @property
    def slug(self) -> str:
        return self.label + (self.parameter or self.step).replace(".", "-").replace("_", "-")

    def bug(self, slug: str, change: Callable[[State, NDArray], NDArray], words: str) -> Bug:
        """The bug of another array here; `words` follow "NAME are "."""
        slug, sentence = f"{self.slug}-{slug}", f"{self.name} are {words}."

        def where(state: State, array: NDArray) -> NDArray:
            return array if array is None or not self.when(state) else change(state, array)

        if self.parameter == BIAS:
            return around(self.step, slug, _biased(where), sentence, self.fix)
        if self.parameter == INNER:
            return around(self.step, slug, _before_tanh(where), sentence, self.fix)
        if self.parameter:
            return on_parameter(self.step, self.parameter, slug, where, sentence, self.fix)
        return on_step(self.step, slug, where, sentence, self.fix)

    def changed(self, change: Change) -> Bug:
        """The bug of one of the changes of an array."""

        def applied(state: State, array: NDArray) -> NDArray:
            if array.ndim != len(self.axes):
                raise DoesNotApply(f"{self.name} have other axes here")
            return change.apply(array, self.axes, setting_of(state))

        return self.bug(change.slug, applied, f"the definition's {change.words}")


def _biased(change: Callable[[State, NDArray], NDArray]) -> Callable[[State, Step], NDArray]:
    """The step run with another additive bias, which is given to `change` with all four axes; if there is one."""

    def changed(state: State, beneath: Step) -> NDArray:
        mask = state.inputs.mask
        if mask.bias is None:
            found: NDArray = beneath(state)
            return found
        whole = np.broadcast_to(additive_bias(mask), state["capped"].shape)
        found = beneath(with_mask(state, bias=change(state, whole)))
        return found

    return changed


def _before_tanh(change: Callable[[State, NDArray], NDArray]) -> Callable[[State, Step], NDArray | None]:
    """The tanh of something else than A q + C k, where there is one."""

    def changed(state: State, beneath: Step) -> NDArray | None:
        hidden = beneath(state)
        if hidden is None:
            return None
        weights = state.parameters
        of_query = state["queries"] @ weights["score.query.weight"].T
        inside = of_query[:, :, :, None] + (state.heads_of("keys") @ weights["score.key.weight"].T)[:, :, None]
        if not np.array_equal(np.tanh(inside), hidden):  # another bug is beneath
            with any_numbers:
                inside = np.arctanh(hidden)
        found: NDArray = np.tanh(change(state, inside))
        return found

    return changed


def setting_of(state: State) -> Setting:
    return Setting(state.config, state.sizes)


OF_INPUT = "Project queries from the query input and keys from the key input, as they are given."
OF_WEIGHT = "A weight is (out, in), W and b of its own projection: compute x @ W.T + b."
OF_SPLIT = "Split as reshape(B, L, H, d).transpose(0, 2, 1, 3), and leave the heads as they are."
OF_SCORES = "Compute queries @ keys^T, (B, H, Lq, Lk), times the config's softmax_scale."
OF_ADDITIVE = "score = vector . tanh(A query + C key), A = score.query.weight, C = score.key.weight."
OF_CAP = "The scaled score becomes c * tanh(score / c), before bias and exclusion."
OF_SUM = "Add the bias to the scaled and capped scores, as it is, before the softmax."

GIVEN = ("item", "position", "input channel")
PROJECTED = ("item", "position", "channel")
SPLIT = ("item", "head", "position", "channel")
SCORED = ("item", "head", "query", "key")
MATRIX = ("output channel", "input channel")
VECTOR = ("output channel",)

INPUTS = tuple(
    Place(step, GIVEN, f"The inputs that {what} are projected from", OF_INPUT, ("position", "input channel"))
    for step, what in (("query_inputs", "queries"), ("key_inputs", "keys"))
)
WEIGHTS, BIASES = (
    tuple(
        Place(step, axes, f"The numbers of {step}.{kind}, as used,", OF_WEIGHT, ("output channel",), f"{step}.{kind}")
        for step in ("q_proj", "k_proj")
    )
    for kind, axes in (("weight", MATRIX), ("bias", VECTOR))
)
PROJECTIONS = tuple(
    Place(step, PROJECTED, f"Projected {what}", OF_WEIGHT, ("channel",))
    for step, what in (("q_proj", "queries"), ("k_proj", "keys"))
)
HEADS = tuple(
    Place(step, SPLIT, f"{what}, split into heads,", OF_SPLIT, ("head", "position", "channel"))
    for step, what in (("queries", "Queries"), ("new_keys", "Keys"))
)
KEYS = Place("keys", SPLIT, "Keys, also those of the past,", OF_SPLIT, ("head", "position", "channel"))
"""Where there is no past, the same as the last of HEADS."""
UNSCALED = Place("unscaled", SCORED, "Scores before the scale", OF_SCORES, SCORED[1:])
SIMILARITY = Place("similarity", SCORED, "Scores", OF_SCORES, SCORED[1:])
CAPPED = Place("capped", SCORED, "Scores after the softcap", OF_CAP, SCORED[1:])
ADDED = Place("scores", SCORED, "The numbers of the additive bias, as they are added,", OF_SUM, SCORED[1:], BIAS)
SCORES = Place("scores", SCORED, "Scores with the additive bias", OF_SUM, SCORED[1:])
HIDDEN = Place("additive_hidden", (*SCORED, "hidden"), "Hidden units of the additive score", OF_ADDITIVE, ("hidden",))
INSIDE = replace(HIDDEN, name="Hidden units of the additive score, before their tanh,", parameter=INNER)
ADDITIVE = tuple(
    Place(step, axes, f"The numbers of {name}, as used,", OF_ADDITIVE, axes, name)
    for step, name, axes in (
        ("additive_hidden", "score.query.weight", MATRIX),
        ("additive_hidden", "score.key.weight", MATRIX),
        ("unscaled", "score.vector", VECTOR),
    )
)


EXCHANGES = tuple(exchange(a, b, both=True) for a, b in combinations(range(5), 2) if b > 1)
"""Two of an axis exchanged; the first two are among the rules of every axis."""


def reordered(places: Iterable[Place]) -> Iterator[Bug]:
    """Each order of each axis of its own at each place: nothing is read for it, the search tries them."""
    for place in places:
        position = {axis: position for position, axis in enumerate(place.axes)}
        for axis in place.own:
            for change in (*axis_changes((axis,)), *(order_change(axis, -1, one) for one in EXCHANGES)):
                yield place.changed(_along(change, position[axis], axis))


def _along(change: Change, position: int, axis: str) -> Change:
    """The change of an array's last axis, at another position."""

    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        last = np.moveaxis(array, position, -1)
        return np.moveaxis(change.apply(last, (axis,), setting), -1, position)

    return Change(change.slug, change.words, apply)
