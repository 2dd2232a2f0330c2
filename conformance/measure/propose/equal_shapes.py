"""Equal shapes: another array in an array's place, or added to it, where it has that shape; elsewhere all is right.

In a layer whose sizes all differ no such mistake shows, and most others show before layers of equal sizes are met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.measure.evidence import Evidence
from conformance.measure.faults import bug_of, with_parameters
from conformance.measure.grammar.expressions import Expression, constant
from conformance.measure.grammar.sample import Setting
from conformance.measure.places import PLACES, Place
from conformance.measure.propose.steps import Candidate, amounts
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.forward import PROJECTED
from mha_core.reference.state import State, Step

WHERE = "where their shapes agree"
FIX = "Tell arrays apart by their names, not by their shapes: {} has one of its own."

GIVEN: dict[str, str] = {"query_inputs": "queries", "key_inputs": "keys", "value_inputs": "values"}
"""Step -> the input of the layer that it gives."""

Read = Callable[[State], Any]


def of_another(place: Place, slug: str, words: str, read: Read, share: Expression, *, is_mixture: bool = True) -> Bug:
    """The bug by which a share of another array stands at a place, or is added to what is there."""

    def change(state: State, beneath: Step) -> Any:
        own = place.get(state, beneath)
        try:
            with any_numbers:
                other = np.asarray(read(state))
        except (DoesNotApply, KeyError, ValueError, AttributeError):  # this layer has no such array
            return beneath(state)
        if own is None or other.shape != np.shape(own) or other.dtype == object:
            return beneath(state)
        number = share.at(Setting.of(state))
        return place.put(state, beneath, own + number * (other - own if is_mixture else other))

    whole = is_mixture and share.words == "1"
    what = place.words[0].upper() + place.words[1:]
    said = f"are {words}" if whole else f"have {share.words} of {words} {'in their place' if is_mixture else 'added'}"
    name = (
        f"{place.id}-{'of' if is_mixture else 'plus'}-{'' if whole else share.slug + '-of-'}{slug}-where-shapes-agree"
    )
    slug = name.replace("_", "-").replace(".", "-")
    return bug_of(
        slug, f"{what} {said} {WHERE}.", FIX.format(place.id), dict.fromkeys(place.steps, change), stage=place.stage
    )


def _parameter(name: str, *, transposed: bool = False) -> Read:
    return lambda state: state.parameters[name].T if transposed else state.parameters[name]


def _read_otherwise(name: str) -> Iterator[tuple[str, str, Read]]:
    """A matrix that is read otherwise where it is square."""

    def square(state: State) -> NDArray:
        weight = np.asarray(state.parameters[name])
        if weight.shape[0] != weight.shape[1]:
            raise DoesNotApply("not square")
        return weight

    yield "itself-transposed", "themselves, transposed,", lambda state: square(state).T
    yield "the-identity", "the identity", lambda state: np.eye(len(square(state)))
    yield "itself-twice", "its square", lambda state: square(state) @ square(state)
    yield "itself-symmetric", "the mean of them and their transpose", lambda s: 0.5 * (square(s) + square(s).T)


ONCE = constant(1.0)


@cache
def parameters_where_equal() -> tuple[Bug, ...]:
    """Each parameter replaced by another one, and each weight read otherwise, where shapes allow it."""
    found: list[Bug] = []
    for projection in PROJECTED:
        for other in PROJECTED:
            for kind in ("weight", "bias") if other != projection else ():
                place, name = PLACES[f"{projection}.{kind}"], f"{other}.{kind}"
                found.append(of_another(place, other, name, _parameter(name), ONCE))
                if kind == "weight":
                    read = _parameter(name, transposed=True)
                    found.append(of_another(place, f"{other}-transposed", f"{name}, transposed,", read, ONCE))
        place = PLACES[f"{projection}.weight"]
        found += [of_another(place, slug, words, read, ONCE) for slug, words, read in _read_otherwise(place.id)]
    return (*found, *(_exchanged(*pair) for pair in combinations(PROJECTED, 2)))


def _exchanged(first: str, second: str) -> Bug:
    """Two weights exchanged, whichever reads them."""
    one, other = f"{first}.weight", f"{second}.weight"

    def change(state: State, beneath: Step) -> Any:
        a, b = state.parameters.get(one), state.parameters.get(other)
        if a is None or b is None or a.shape != b.shape:
            return beneath(state)
        return beneath(with_parameters(state, {one: b, other: a}))

    steps = dict.fromkeys((PROJECTED[first][1], PROJECTED[second][1]), change)
    return bug_of(
        f"{first}-and-{second}-exchanged-where-shapes-agree",
        f"{one} and {other} are exchanged {WHERE}.",
        FIX.format(one),
        steps,
    )


@cache
def biases_where_equal() -> tuple[Bug, ...]:
    """Each bias replaced by another one of its length, which some layers have whose widths all differ."""
    return tuple(bug for bug in parameters_where_equal() if ".bias" in bug.sentence)


def _input(step: str, *, padded: bool = False) -> Read:
    """Another input of the layer, its padding set to 0, as `key_inputs` and `value_inputs` are, if asked."""

    def read(state: State) -> NDArray:
        given: NDArray = getattr(state.inputs, GIVEN[step])
        padding = state["padding"][:, state.sizes.past_len :, None]
        return np.where(padding, 0.0, given) if padded and padding.shape[1] == given.shape[1] else given

    return read


@cache
def inputs_where_equal() -> tuple[Bug, ...]:
    """Each projection given the input of another, and each past that of the other."""
    found = [
        of_another(
            PLACES[step],
            f"{GIVEN[other]}{'-padded' if padded else ''}",
            f"the layer's {GIVEN[other]}",
            _input(other, padded=padded),
            ONCE,
        )
        for step in GIVEN
        for other in GIVEN
        if other != step
        for padded in (False, True)
    ]
    for past, other in (("past_keys", "past_values"), ("past_values", "past_keys")):
        found.append(of_another(PLACES[past], other, f"the {other}", partial(_past, other), ONCE))
    return tuple(found)


def _past(name: str, state: State) -> Any:
    return getattr(state.inputs, name)


def where_equal(evidence: Evidence) -> Iterator[Candidate]:
    """All of them; then so much of an input mixed into another, or added to a projection, the heads or the output."""
    yield from parameters_where_equal()
    yield from inputs_where_equal()
    for step in ("output", "merged", "v_proj"):
        for other in GIVEN:
            yield from amounts(evidence, partial(_added, step, other))
    for step in GIVEN:
        for other in GIVEN:
            if other != step:
                yield from amounts(evidence, partial(_mixed, step, other))


def _added(step: str, other: str, number: Expression) -> Bug:
    words = f"the layer's {GIVEN[other]}"
    return of_another(PLACES[step], GIVEN[other], words, _input(other), number, is_mixture=False)


def _mixed(step: str, other: str, number: Expression) -> Bug:
    return of_another(PLACES[step], GIVEN[other], f"the layer's {GIVEN[other]}", _input(other), number)
