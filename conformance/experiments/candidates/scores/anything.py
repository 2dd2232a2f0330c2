"""Anything: candidates for scores that differ, from other orders of axes to so much of something at some place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from conformance.cases.problem import Problem
from conformance.experiments.candidates.scores.families import Family, factor, linear
from conformance.experiments.candidates.scores.functions import curves, functions_at, patterns
from conformance.experiments.candidates.scores.numbers import measured_numbers
from conformance.experiments.candidates.scores.places import (
    HEADS,
    INPUTS,
    PROJECTIONS,
    SIMILARITY,
    WEIGHTS,
    Place,
    reordered,
)
from conformance.experiments.candidates.scores.target import Target, targets
from conformance.experiments.view import View
from conformance.zoo.bug import Bug

Candidate = Bug | tuple[Bug, ...]
Propose = Callable[[View, Iterable[Problem]], Iterator[Candidate]]

EVERYWHERE = (SIMILARITY, *INPUTS, *WEIGHTS, *PROJECTIONS, *HEADS)
"""From the inputs to the scores of a dot product without biases."""


def linear_at(places: Sequence[Place]) -> list[Family]:
    """Factors first, then the others of each place.

    A factor on the inputs is one on the weight, one on the projection one on the heads.
    """
    factors = [factor(place) for place in places if place not in (*INPUTS, *PROJECTIONS)]
    others = [family for place in places for family in linear(place)]
    return [*factors, *others, *(patterns() if SIMILARITY in places else ()), *curves(tuple(places))]


def whole_first(
    view: View, problems: Sequence[Problem], isolated: Propose, places: Sequence[Place] = EVERYWHERE
) -> Iterator[Candidate]:
    """What explains problems in which everything can show; only if there is none, what may be wrong in this probe's.

    A probe in which much is alike does not tell apart what these do: then its candidates would hide the right one.
    """
    differing = targets(view, problems)
    found = False
    for candidate in _that_fit(differing, places):
        found = True
        yield candidate
    if not found:
        yield from isolated(view, view.problems)


def _that_fit(differing: Sequence[Target], places: Sequence[Place]) -> Iterator[Candidate]:
    if differing:
        for bug in (*reordered(places), *functions_at(tuple(places))):
            if all(target.is_given_by(bug) for target in differing):
                yield bug
        yield from measured_numbers(differing, linear_at(places))


def measured_factors(places: Iterable[Place]) -> Propose:
    """Another factor at one of the places."""
    families = [factor(place) for place in places]
    return lambda view, problems: measured_numbers(targets(view, problems), families, pairs=False)


def anything_at(places: Sequence[Place]) -> Propose:
    """Other orders of axes; and so much of anything."""

    def propose(view: View, problems: Iterable[Problem]) -> Iterator[Candidate]:
        yield from reordered(places)
        yield from functions_at(tuple(places))
        yield from measured_numbers(targets(view, problems), linear_at(places))

    return propose
