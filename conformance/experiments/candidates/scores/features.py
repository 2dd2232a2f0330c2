"""Features of the score, each met alone: a scale, a softcap, biases, the additive score, a bias in the mask.

What a subject uses in place of a feature's number, parameter or array is solved for, and a change is fitted to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.candidates.amounts import amounts_of
from conformance.experiments.candidates.scores.places import (
    ADDED,
    ADDITIVE,
    CAPPED,
    KEYS,
    OF_ADDITIVE,
    OF_CAP,
    OF_SCORES,
    OF_SUM,
    SCORES,
    SIMILARITY,
    UNSCALED,
    Place,
    reordered,
    setting_of,
)
from conformance.experiments.candidates.scores.sides import changes_of, gauged
from conformance.experiments.changes.elements.values import FUNCTIONS, Elementwise
from conformance.experiments.changes.expressions import Expression
from conformance.experiments.changes.fit import factors
from conformance.experiments.changes.sample import Change, Sample
from conformance.experiments.designs import NO_BIASES, changed
from conformance.experiments.measured import around, on_step
from conformance.experiments.solving.call import number_of, with_number
from conformance.experiments.solving.solved import read_all, sample_of, samples_of
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core.call.masks import additive_bias
from mha_core.reference.state import State, Step

KEY = -1
"""The axis along which what is the same for all elements cancels in the softmax."""


# Numbers of the config --------------------------------------------------------------------------------

Has = Callable[[State], bool]


def of_number(view: View, name: str, words: str, place: tuple[str, str], given: Has | None = None) -> Iterator[Bug]:
    """Every change of the scale, or of the softcap, that a subject uses in its place.

    Args:
        view: has the subject and the model.
        name: "scale" or "softcap".
        words: how a sentence calls it.
        place: the step that reads it, and what to do about it.
        given: in which layers it is wrong. Default: in all that have it.
    """
    samples = samples_of(view, _with_number(view.problems, name), name, ("number",))
    for change in changes_of(samples):

        def apply(state: State, beneath: Step, change: Change = change) -> NDArray:
            own = number_of(state.config, name)
            if own is None or not (given is None or given(state)):
                return np.asarray(beneath(state))
            number = float(change.apply(np.array([own]), ("number",), setting_of(state))[0])
            return np.asarray(beneath(replace(state, config=with_number(state.config, name, number))))

        slug = f"{words.lower().replace(',', '').replace(' ', '-')}-{change.slug}"
        yield around(place[0], slug, apply, f"{words} is the definition's {change.words}.", place[1])


def _with_number(problems: Iterable[Problem], name: str) -> list[Problem]:
    return [problem for problem in problems if number_of(problem.config, name) is not None]


OF_SIMILARITY = "similarity", OF_SCORES


def of_scale(view: View) -> Iterator[Bug]:
    """What scores are multiplied by in place of the scale, wherever that is used or where it is given alone."""
    yield from of_number(view, "scale", "The scale", OF_SIMILARITY)
    if any(problem.config.scale is not None for problem in view.problems):
        yield from of_number(view, "scale", "A given scale", OF_SIMILARITY, _has_scale)


def of_scores(view: View) -> Iterator[Bug]:
    """Every change of the scores of layers whose score is what these problems' is; all others were seen by then."""
    scores = {problem.config.score for problem in view.problems}
    samples = samples_of(view, view.problems, "similarity", SIMILARITY.axes, KEY)
    if any(sample.differs for sample in samples):
        name, label = " and ".join(sorted(scores)), "-".join(sorted(scores))
        place = replace(
            SIMILARITY,
            label=f"{label}-",
            when=lambda state: state.config.score in scores,
            name=f"With the score {name}, scores",
        )
        for change in gauged(samples, KEY, place.axes):
            yield place.changed(change)


def _has_scale(state: State) -> bool:
    return state.config.scale is not None


SCALED = replace(  # a step of its own, so that it is followed beside the factor of all scores
    UNSCALED,
    label="scaled-",
    when=lambda state: state.config.score == "scaled_dot",
    name="With a scale, scores",
)
UNCAPPED = replace(
    SCORES, label="uncapped-", when=lambda state: state.config.softcap is None, name="Without a softcap, scores"
)


def of_size(view: View) -> Iterator[Bug]:
    """The factor on all scores; the sentence says the number that was expected too."""
    samples = samples_of(view, _with_number(view.problems, "scale"), "scale", ("number",))
    if not any(sample.differs for sample in samples):
        return
    first = samples[0]
    expected, number = float(first.expected[0]), float(first.measured[0])
    detail = f": queries @ keys^T is multiplied by {number:.4g} where {expected:.4g} was expected"
    with any_numbers:
        found = list(factors(samples))
    for change in found:
        for place in (SIMILARITY, SCORES, SCALED, UNCAPPED):
            told = detail if place in (SIMILARITY, SCALED) else ""
            yield place.changed(replace(change, words=change.words + told))


# The softcap --------------------------------------------------------------------------------------------


def of_softcap(view: View) -> Iterator[Bug]:
    """Another number in place of the softcap c, and another function in place of tanh in c * tanh(score / c)."""
    yield from of_number(view, "softcap", "The softcap", ("capped", OF_CAP))
    yield from of_number(view, "scale", "With a softcap, the scale", OF_SIMILARITY, _has_cap)
    anchored = [changed(one, NO_BIASES, keys=_first_is_zero(one.inputs.keys)) for one in view.problems]
    samples = samples_of(view, _with_number(view.lab.nearest(anchored), "softcap"), "capped", CAPPED.axes, KEY)
    if not any(sample.differs for sample in samples):
        return
    for change in changes_of([_of_fraction(sample) for sample in samples]):

        def apply(state: State, beneath: Step, change: Change = change) -> NDArray:
            c = state.config.softcap
            if c is None:
                return np.asarray(beneath(state))
            return c * change.apply(state["similarity"] / c, CAPPED.axes, setting_of(state))

        words = f"With a softcap c, scores are c times score / c {change.words}."
        yield around("capped", f"softcap-{change.slug}", apply, words, OF_CAP)
    for change in gauged(samples, KEY, CAPPED.axes):
        yield CAPPED.changed(change)
    # What is the same for all keys of a row shows with a softcap alone.
    for change in changes_of(samples_of(view, _with_number(view.problems, "softcap"), "keys", KEYS.axes)):
        yield KEYS.changed(change)


def _has_cap(state: State) -> bool:
    return state.config.softcap is not None


def _first_is_zero(rows: NDArray) -> NDArray:
    return np.concatenate([np.zeros_like(rows[:, :1]), rows[:, 1:]], axis=1)


def _of_fraction(sample: Sample) -> Sample:
    """Scores after the softcap over c, of which that of key 0 is 0, beside scores before it over c."""
    c = sample.setting.config.softcap or 1.0
    return replace(
        sample, measured=(sample.measured - sample.measured[..., :1]) / c, expected=np.arctanh(sample.expected / c)
    )


# The mask's bias ----------------------------------------------------------------------------------------


def of_mask_bias(view: View) -> Iterator[Bug]:
    """Every change of the additive bias: what the scores are besides those before it."""
    samples = []
    for sample, problem in read_all(
        view, [one for one in view.problems if one.inputs.mask.bias is not None], "scores", KEY
    ):
        bias = np.broadcast_to(additive_bias(problem.inputs.mask), sample[0].shape)
        samples.append(sample_of(view, problem, sample[0] - sample[1] + bias, np.array(bias), ADDED.axes))
    for change in gauged(samples, KEY, ADDED.axes) if any(sample.differs for sample in samples) else ():
        yield ADDED.changed(change)


def bias_left_out() -> Bug:
    """The bias is not added; -inf in it excludes keys all the same."""

    def step(state: State, scores: NDArray) -> NDArray:
        return scores if state.inputs.mask.bias is None else np.asarray(state["capped"])

    return on_step("scores", "bias-left-out", step, "The additive bias is not added.", OF_SUM)


# Parameters ---------------------------------------------------------------------------------------------


def of_parameters(view: View, places: Sequence[Place]) -> Iterator[Bug]:
    """Every change of a parameter that is solved for; and other orders, which may be too far off for that."""
    for place in places:
        for change in changes_of(samples_of(view, view.problems, place.parameter, place.axes)):
            yield place.changed(change)
    yield from reordered(places)


TRANSPOSED = tuple(
    place.bug(
        "transposed-where-square",
        lambda state, array: array.T if array.shape[0] == array.shape[1] else array,
        "the definition's, transposed where they are square",
    )
    for place in ADDITIVE
    if len(place.axes) == 2
)


def of_hidden() -> Iterator[Bug]:
    """Another function in place of the tanh of the additive score; nothing is read for it, the search tries them."""
    functions: dict[str, tuple[str, Elementwise]] = {"none": ("as they are", lambda x: x), **FUNCTIONS}
    for name, (words, function) in functions.items():

        def step(state: State, hidden: NDArray | None, function: Elementwise = function) -> NDArray | None:
            return None if hidden is None else function(inside(state))

        yield on_step(
            "additive_hidden",
            f"additive-{name}",
            step,
            f"The hidden units of the additive score are A q + C k {words}, in place of their tanh.",
            OF_ADDITIVE,
        )


def of_inside(view: View) -> Iterator[Bug]:
    """A factor on what stands under the tanh of the additive score, or a number that is added to it."""
    yield from amounts_of(view, partial(_inside, how="times"))
    yield from amounts_of(view, partial(_inside, how="plus"))


def _inside(amount: Expression | None, how: str) -> Bug:
    told = "2" if amount is None else amount.words

    def step(state: State, hidden: NDArray | None) -> NDArray | None:
        if hidden is None:
            return None
        number = 2.0 if amount is None else amount.at(setting_of(state))
        return np.asarray(np.tanh(inside(state) * number if how == "times" else inside(state) + number))

    sentence = f"Under the tanh of the additive score stands A q + C k {how} {told}."
    return on_step("additive_hidden", f"additive-inside-{how}-{told.replace(' ', '')}", step, sentence, OF_ADDITIVE)


def inside(state: State) -> NDArray:
    """(B, H, Lq, Lk, S): A q + C k of the additive score."""
    weights = state.parameters
    of_query = state["queries"] @ weights["score.query.weight"].T
    of_key = state.heads_of("keys") @ weights["score.key.weight"].T
    return np.asarray(of_query[:, :, :, None] + of_key[:, :, None, :])
