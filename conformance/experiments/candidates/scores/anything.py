"""Anything: what may be wrong up to the scores: what is read off in plain calls, or so much of something in others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from weakref import WeakKeyDictionary

from conformance.cases.problem import Problem
from conformance.experiments.candidates.scores.families import Family, factor, linear
from conformance.experiments.candidates.scores.numbers import measured_numbers
from conformance.experiments.candidates.scores.places import INPUTS, PROJECTIONS, SIMILARITY, Place, reordered
from conformance.experiments.candidates.scores.shown import Candidate, shown
from conformance.experiments.candidates.scores.target import targets
from conformance.experiments.lab import Lab
from conformance.experiments.view import View

Propose = Callable[[View, Iterable[Problem]], Iterator[Candidate]]

MOST_MODELS = 4
"""Models of one size whose scores are read at one probe: those of a beam are mostly the same in other words."""

_turns: WeakKeyDictionary[Lab, dict[tuple[int, int, str], int]] = WeakKeyDictionary()


def _has_turn(view: View, what: str) -> bool:
    """Whether a model is one of the first MOST_MODELS of its size at a probe."""
    turns = _turns.setdefault(view.lab, {})
    key = id(view.problems[0]) if view.problems else 0, len(view.model), what
    turns[key] = turns.get(key, 0) + 1
    return turns[key] <= MOST_MODELS


def up_to_scores(view: View) -> Iterator[Candidate]:
    """Every change of an array up to the scores that is read off plain calls."""
    if _has_turn(view, "shown"):
        yield from OF_SIZE(view, view.problems)
        yield from shown(view)


def linear_at(places: Sequence[Place]) -> list[Family]:
    """Factors first, then the others of each place.

    A factor on the inputs is one on the weight, one on the projection one on the heads.
    """
    factors = [factor(place) for place in places if place not in (*INPUTS, *PROJECTIONS)]
    return [*factors, *(family for place in places for family in linear(place))]


def measured_factors(places: Iterable[Place]) -> Propose:
    """Another factor at one of the places."""
    families = [factor(place) for place in places]
    return lambda view, problems: measured_numbers(targets(view, problems), families, pairs=False)


def anything_at(places: Sequence[Place]) -> Propose:
    """Other orders of axes; and so much of anything."""

    def propose(view: View, problems: Iterable[Problem]) -> Iterator[Candidate]:
        if _has_turn(view, "anything"):
            yield from reordered(places)
            yield from measured_numbers(targets(view, problems), linear_at(places))

    return propose


OF_SIZE = measured_factors((SIMILARITY,))
"""What multiplies all scores; the sentence says the number that was expected too."""
