"""Anything: candidates for scores that differ, from other orders of axes to so much of something at some place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from weakref import WeakKeyDictionary

from conformance.cases.problem import Problem
from conformance.experiments.candidates.scores.arrays import read_arrays
from conformance.experiments.candidates.scores.families import Family, factor, linear
from conformance.experiments.candidates.scores.functions import curves, functions_at, on_both, patterns
from conformance.experiments.candidates.scores.matrices import weights_read
from conformance.experiments.candidates.scores.numbers import measured_numbers
from conformance.experiments.candidates.scores.places import (
    HEADS,
    INPUTS,
    KEYS,
    PROJECTIONS,
    SIMILARITY,
    WEIGHTS,
    Place,
    reordered,
)
from conformance.experiments.candidates.scores.target import Target, targets
from conformance.experiments.lab import Lab
from conformance.experiments.view import View
from conformance.zoo.bug import Bug

Candidate = Bug | tuple[Bug, ...]
Propose = Callable[[View, Iterable[Problem]], Iterator[Candidate]]

EVERYWHERE = (SIMILARITY, *INPUTS, *WEIGHTS, *PROJECTIONS, *HEADS, KEYS)
"""From the inputs to the scores of a dot product without biases."""


def linear_at(places: Sequence[Place]) -> list[Family]:
    """Factors first, then the others of each place.

    A factor on the inputs is one on the weight, one on the projection one on the heads.
    """
    factors = [factor(place) for place in places if place not in (*INPUTS, *PROJECTIONS)]
    others = [family for place in places for family in linear(place)]
    return [*factors, *others, *(patterns() if SIMILARITY in places else ()), *curves(tuple(places))]


MOST_MODELS = 4
"""Models of one size whose scores are read at one probe: those of a beam are mostly the same in other words."""

_turns: WeakKeyDictionary[Lab, dict[tuple[int, int, str], int]] = WeakKeyDictionary()


def _has_turn(view: View, what: str = "") -> bool:
    """Whether a model is one of the first MOST_MODELS of its size at a probe."""
    turns = _turns.setdefault(view.lab, {})
    key = id(view.problems[0]) if view.problems else 0, len(view.model), what
    turns[key] = turns.get(key, 0) + 1
    return turns[key] <= MOST_MODELS


def whole_first(
    view: View, problems: Sequence[Problem], isolated: Propose, places: Sequence[Place] = EVERYWHERE
) -> Iterator[Candidate]:
    """What explains problems in which everything can show; only if there is none, what may be wrong in this probe's.

    A probe in which much is alike does not tell apart what these do: then its candidates would hide the right one.
    """
    if not _has_turn(view):
        return
    differing = targets(view, problems)
    found = False
    read = (bug for bug in weights_read(view) if all(target.is_given_by(bug) for target in differing))
    for candidate in chain(read if differing else (), _that_fit(differing, places)):
        found = True
        yield candidate
    if not found:
        yield from isolated(view, view.problems)


def _that_fit(differing: Sequence[Target], places: Sequence[Place]) -> Iterator[Candidate]:
    if differing:
        for bug in (*reordered(places), *functions_at(tuple(places))):
            if all(target.is_given_by(bug) for target in differing):
                yield bug
        for pair in on_both():
            if all(target.is_given_by(*pair) for target in differing):
                yield pair
        yield from measured_numbers(differing, linear_at(places))
        if places is EVERYWHERE:
            for bug in read_arrays(differing[0].view):
                if all(target.is_given_by(bug) for target in differing):
                    yield bug


def measured_factors(places: Iterable[Place]) -> Propose:
    """Another factor at one of the places."""
    families = [factor(place) for place in places]
    return lambda view, problems: measured_numbers(targets(view, problems), families, pairs=False)


def anything_at(places: Sequence[Place]) -> Propose:
    """Other orders of axes; and so much of anything."""

    def propose(view: View, problems: Iterable[Problem]) -> Iterator[Candidate]:
        if not _has_turn(view, "anything"):
            return
        if any(place in WEIGHTS for place in places):
            yield from weights_read(view)
        yield from reordered(places)
        yield from functions_at(tuple(places))
        yield from measured_numbers(targets(view, problems), linear_at(places))
        if places is EVERYWHERE:
            yield from read_arrays(view)

    return propose
