"""Runs of correct implementations as units of work, for worker processes: the same ones as in one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from conformance.calibration.calibrate import Outcome, Tightness, failed, of_layer, taking_part, tightness
from conformance.calibration.draws import DRAWS_PER_LAYER
from conformance.subjects.subject import Subject
from conformance.workers import Settings, Unit, run_units
from conformance.workers.described import home_of, relative_cost
from conformance.workers.interpreters import Home

LAYERS = 4
"""Layers of one unit."""


@dataclass(frozen=True)
class Run:
    """One run, as a worker gives it.

    Attributes:
        index: of the problem.
        outcome: what came of it.
        tightness: how tight the bounds of the problem are, at the first subject of a unit; else None.
    """

    index: int
    outcome: Outcome
    tightness: Tightness | None


@dataclass(frozen=True)
class LayerUnit(Unit):
    """Layers on subjects of one home; an item is a layer with all its problems, whose answer is its Runs.

    Args:
        seed, dtype: of the problems.
        subjects: as this process knows them.
        layers: their numbers.
    """

    seed: int
    dtype: str
    subjects: tuple[Any, ...]
    layers: tuple[int, ...]

    @property
    def home(self) -> Home:
        return home_of(self.subjects[0])

    @property
    def cost(self) -> float:
        return len(self.layers) * len(self.subjects) * relative_cost(self.subjects[0])

    def __len__(self) -> int:
        return len(self.layers)

    def run(self, start: int) -> Iterator[tuple[Run, ...]]:
        for number in self.layers[start:]:
            runs: list[Run] = []
            for index, wanted, outcome in of_layer(self.seed, number, self.dtype, taking_part(self.subjects, number)):
                first = not runs or runs[-1].index != index
                runs.append(Run(index, outcome, tightness(wanted) if first else None))
            yield tuple(runs)

    def lost(self, item: int, reason: str) -> tuple[Run, ...]:
        number = self.layers[item]
        return tuple(
            Run(index, failed(subject, f"{self.seed}-{index}", reason), None)
            for index in range(number * DRAWS_PER_LAYER, (number + 1) * DRAWS_PER_LAYER)
            for subject in taking_part(self.subjects, number)
        )


def calibrate_apart(
    seed: int, runs: int, subjects: Mapping[str, Sequence[Subject]], executor: Executor, settings: Settings
) -> Iterator[Run]:
    """At least `runs` runs of correct implementations in each dtype, in worker processes, in any order.

    The same seed and subjects give the same ones; `in_order` sorts them.

    Args:
        seed: of the problems.
        runs: how many in each dtype.
        subjects: dtype -> those that take part.
        executor, settings: where, and with what.
    """
    units: list[LayerUnit] = []
    for dtype, group in subjects.items():
        homes: dict[Home, list[Subject]] = defaultdict(list)
        for subject in group:
            homes[home_of(subject)].append(subject)
        last = _layers(runs, group)
        for own in homes.values():
            numbers = [number for number in range(last) if taking_part(own, number)]
            for start in range(0, len(numbers), LAYERS):
                units.append(LayerUnit(seed, dtype, tuple(own), tuple(numbers[start : start + LAYERS])))
    for _, _, found in run_units(units, executor, settings):
        yield from found


def _layers(runs: int, subjects: Sequence[Subject]) -> int:
    """How many layers have so many runs."""
    number = there = 0
    while there < runs:
        there += DRAWS_PER_LAYER * len(taking_part(subjects, number))
        number += 1
    return number


def in_order(found: Sequence[Run], runs: int, subjects: Mapping[str, Sequence[Subject]]) -> list[Run]:
    """The first `runs` runs of each dtype: problem after problem, each on every subject."""
    chosen: list[Run] = []
    for dtype, group in subjects.items():
        place = {subject.name: position for position, subject in enumerate(group)}
        own = [run for run in found if run.outcome.dtype == dtype]
        chosen += sorted(own, key=lambda run: (run.index, place[run.outcome.subject]))[:runs]
    return chosen
