"""Equal shapes: another array in an array's place, or added to it, where it has that shape; elsewhere all is right.

In a layer whose sizes all differ no such mistake shows, and most others show before layers of equal sizes are met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import combinations, permutations, product
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
    part = "" if whole else f"{share.slug}-of-"
    name = f"{place.id}-{'of' if is_mixture else 'plus'}-{part}{slug}-where-shapes-agree"
    slug, fix = name.replace("_", "-").replace(".", "-"), FIX.format(place.id)
    return bug_of(slug, f"{what} {said} {WHERE}.", fix, dict.fromkeys(place.steps, change), stage=place.stage)


def _square(weight: NDArray) -> NDArray:
    if weight.shape[0] != weight.shape[1]:
        raise DoesNotApply("not square")
    return weight


OTHERWISE: tuple[tuple[str, str, Callable[[NDArray], NDArray]], ...] = (
    ("itself-transposed", "themselves, transposed,", lambda w: w.T),
    ("the-identity", "the identity", lambda w: np.eye(len(w))),
    ("itself-twice", "its square", lambda w: w @ w),
    ("itself-symmetric", "the mean of them and their transpose", lambda w: 0.5 * (w + w.T)),
)
"""What a square matrix may be read as."""

ONCE = constant(1.0)


@cache
def parameters_where_equal() -> tuple[Bug, ...]:
    """Each parameter replaced by another one, and each weight read otherwise, where shapes allow it."""
    found: list[Bug] = []
    for projection in PROJECTED:
        place = PLACES[f"{projection}.weight"]
        for other in (other for other in PROJECTED if other != projection):
            for kind in ("weight", "bias"):
                name = f"{other}.{kind}"
                read = partial(_parameter, name)
                found.append(of_another(PLACES[f"{projection}.{kind}"], other, name, read, ONCE))
            turned = partial(_turned, f"{other}.weight")
            said = f"{other}.weight, transposed,"
            found.append(of_another(place, f"{other}-transposed", said, turned, ONCE))
        for slug, words, function in OTHERWISE:
            found.append(of_another(place, slug, words, partial(_function_of, function, place.id), ONCE))
    return (*found, *(_exchanged(*pair) for pair in combinations(PROJECTED, 2)))


def _parameter(name: str, state: State) -> NDArray:
    return np.asarray(state.parameters[name])


def _turned(name: str, state: State) -> NDArray:
    return np.asarray(state.parameters[name]).T


def _function_of(function: Callable[[NDArray], NDArray], name: str, state: State) -> NDArray:
    return function(_square(_parameter(name, state)))


def _exchanged(first: str, second: str) -> Bug:
    """Two weights exchanged, whichever reads them."""
    one, other = f"{first}.weight", f"{second}.weight"

    def change(state: State, beneath: Step) -> Any:
        a, b = state.parameters.get(one), state.parameters.get(other)
        if a is None or b is None or a.shape != b.shape:
            return beneath(state)
        return beneath(with_parameters(state, {one: b, other: a}))

    slug = f"{first}-and-{second}-exchanged-where-shapes-agree"
    steps = dict.fromkeys((PROJECTED[first][1], PROJECTED[second][1]), change)
    return bug_of(slug, f"{one} and {other} are exchanged {WHERE}.", FIX.format(one), steps)


@cache
def biases_where_equal() -> tuple[Bug, ...]:
    """Each bias replaced by another one of its length, which some layers have whose widths all differ."""
    return tuple(bug for bug in parameters_where_equal() if ".bias" in bug.sentence)


def _input(step: str, state: State) -> NDArray:
    given: NDArray = getattr(state.inputs, GIVEN[step])
    return given


def _padded_input(step: str, state: State) -> NDArray:
    """The input with its padding set to 0, as `key_inputs` and `value_inputs` are."""
    given, padding = _input(step, state), state["padding"][:, state.sizes.past_len :, None]
    return np.where(padding, 0.0, given) if padding.shape[1] == given.shape[1] else given


def _past(name: str, state: State) -> Any:
    return getattr(state.inputs, name)


@cache
def inputs_where_equal() -> tuple[Bug, ...]:
    """Each projection given the input of another, and each past that of the other."""
    found = []
    for step, other in permutations(GIVEN, 2):
        for end, read in (("", _input), ("-padded", _padded_input)):
            words = f"the layer's {GIVEN[other]}"
            found.append(of_another(PLACES[step], f"{GIVEN[other]}{end}", words, partial(read, other), ONCE))
    for past, other in permutations(("past_keys", "past_values")):
        found.append(of_another(PLACES[past], other, f"the {other}", partial(_past, other), ONCE))
    return tuple(found)


def where_equal(evidence: Evidence) -> Iterator[Candidate]:
    """All of them; then so much of an input mixed into another, or added to a projection, the heads or the output."""
    yield from parameters_where_equal()
    yield from inputs_where_equal()
    for step, other in product(("output", "merged", "v_proj"), GIVEN):
        yield from amounts(evidence, partial(_some, step, other, is_mixture=False))
    for step, other in permutations(GIVEN, 2):
        yield from amounts(evidence, partial(_some, step, other, is_mixture=True))


def _some(step: str, other: str, number: Expression, *, is_mixture: bool) -> Bug:
    words = f"the layer's {GIVEN[other]}"
    return of_another(PLACES[step], GIVEN[other], words, partial(_input, other), number, is_mixture=is_mixture)
