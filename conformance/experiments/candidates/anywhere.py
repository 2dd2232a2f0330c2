"""Anywhere: a change of the array at any step, solved for in a probe's own calls if nothing else explains them.

The latest steps first. Where two steps have the same array, what is fitted to one is tried at both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.candidates.scores.places import (
    CAPPED,
    HEADS,
    INPUTS,
    KEYS,
    SCORES,
    SIMILARITY,
    UNSCALED,
    Place,
)
from conformance.experiments.candidates.scores.sides import changes_of, gauged
from conformance.experiments.candidates.steps import BESIDE, PLACES, change_on
from conformance.experiments.changes.sample import Change
from conformance.experiments.lab import Lab
from conformance.experiments.solving.solved import samples_of
from conformance.experiments.view import View
from conformance.zoo.bug import Bug


class Anywhere(NamedTuple):
    """A step, its axes, the axis along which a number that is the same for all changes nothing, and its bugs."""

    step: str
    axes: tuple[str, ...]
    gauge: int | None
    bug: Callable[[Change], Bug]


def _on_way(step: str) -> Anywhere:
    return Anywhere(step, {**PLACES, **BESIDE}[step].axes, None, lambda change: change_on(step, change))


def _to_scores(place: Place, gauge: int | None) -> Anywhere:
    return Anywhere(place.step, place.axes, gauge, place.changed)


STEPS = (
    *(_on_way(step) for step in ("output", "merged", "heads", "kept_weights", "weights")),
    *(_on_way(step) for step in ("values", "new_values", "value_inputs")),
    *(_to_scores(place, -1) for place in (SCORES, CAPPED, SIMILARITY, UNSCALED)),
    *(_to_scores(place, -2) for place in (KEYS, HEADS[1], INPUTS[1])),
    *(_to_scores(place, None) for place in (HEADS[0], INPUTS[0])),
)

ALL = frozenset(place.step for place in STEPS)

MOST_PROBLEMS = 3

MOST_TURNS, MOST_TURNS_HERE = 8, 2
"""Models for which every step is looked at, in all and at one probe."""

_turns: WeakKeyDictionary[Lab, dict[tuple[int, int], int]] = WeakKeyDictionary()


def _has_turn(view: View) -> bool:
    turns = _turns.setdefault(view.lab, {})
    key = id(view.problems[0]), len(view.model)
    if sum(turns.values()) >= MOST_TURNS or turns.get(key, 0) >= MOST_TURNS_HERE:
        return False
    turns[key] = turns.get(key, 0) + 1
    return True


def anywhere(view: View) -> Iterator[Bug]:
    """Every change of one step's array that gives what differs."""
    if view.explained or view.gradients or not view.problems or not _has_turn(view):
        return
    yield from changes_at(view, list(islice(view.differing(), MOST_PROBLEMS)))


def changes_at(view: View, problems: Sequence[Problem], steps: Collection[str] = ()) -> Iterator[Bug]:
    """Every change of one of some steps (default: any) that is fitted to what these calls have there."""
    done: list[tuple[list[NDArray], list[Change]]] = []
    for place in STEPS:
        samples = (
            samples_of(view, problems, place.step, place.axes, place.gauge) if place.step in (steps or ALL) else []
        )
        if not any(sample.differs for sample in samples):
            continue
        arrays = [sample.expected for sample in samples]
        changes = next((changes for other, changes in done if _same(arrays, other)), None)
        if changes is None:
            changes = changes_of(samples) if place.gauge is None else list(gauged(samples, place.gauge, place.axes))
            done.append((arrays, changes))
        yield from map(place.bug, changes)


def _same(arrays: list[NDArray], others: list[NDArray]) -> bool:
    pairs = zip(arrays, others, strict=False)
    return len(arrays) == len(others) and all(np.array_equal(one, other) for one, other in pairs)
