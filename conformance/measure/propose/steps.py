"""Steps: at each of some places the array is solved for, and a change is fitted to it; one rule for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.evidence import Evidence
from conformance.measure.grammar.expressions import Expression, constant, expressions_of
from conformance.measure.grammar.numbers import solve
from conformance.measure.grammar.orders import order_changes
from conformance.measure.grammar.sample import Change, Sample, Setting
from conformance.measure.places import PLACES, Place, fault
from conformance.measure.read.call import Call
from conformance.measure.read.fit import fit, gauged
from conformance.measure.read.solve import MOST_UNKNOWN, samples_of
from conformance.zoo.bug import Bug

Candidate = Bug | tuple[Bug, ...]

Key = tuple[tuple[str, ...], tuple[Problem, ...], str, bool]

_found: WeakKeyDictionary[Asker, dict[Key, list[Change]]] = WeakKeyDictionary()
"""What was fitted at a place, for a model and calls: probes of one step ask for the same again."""


def changes_at(
    evidence: Evidence, problems: Sequence[Problem], place: Place, *, thoroughly: bool = False
) -> list[Change]:
    """The changes of the array at a place that these calls show."""
    known = _found.setdefault(evidence.asker, {})
    key = tuple(bug.id for bug in evidence.model), tuple(problems), place.id, thoroughly
    if key not in known:
        samples = samples_of(evidence, problems, place)
        known[key] = fitted(samples, place, thoroughly=thoroughly)
    return known[key]


def fitted(samples: Sequence[Sample], place: Place, *, thoroughly: bool = False) -> list[Change]:
    """The changes of arrays at a place that give all samples."""
    if not any(sample.differs for sample in samples):
        return []
    with any_numbers:
        return (
            fit(samples, thoroughly=thoroughly)
            if place.gauge is None
            else gauged(samples, place.gauge, thoroughly=thoroughly)
        )


def at_places(
    evidence: Evidence, problems: Iterable[Problem], ids: Iterable[str], *, thoroughly: bool = False
) -> Iterator[Bug]:
    """Every change of the array at one of some places that gives what differs in these calls.

    Where two places have the same array, what is fitted to one is proposed at both.
    """
    asked = [problem for problem in problems if evidence.got(problem) is not None]
    done: list[tuple[list[NDArray], int | None, list[Change]]] = []
    for place in (PLACES[id] for id in ids):
        owns = [(problem, own) for problem in asked if (own := Call(evidence, problem, place).own) is not None]
        owns = [(problem, own) for problem, own in owns if 0 < own.size <= MOST_UNKNOWN]
        if not owns:
            continue
        arrays = [own for _, own in owns]
        changes = next((c for others, gauge, c in done if gauge == place.gauge and _same(arrays, others)), None)
        if changes is None:
            changes = changes_at(evidence, [problem for problem, _ in owns], place, thoroughly=thoroughly)
            done.append((arrays, place.gauge, changes))
        yield from (fault(place, change) for change in changes)


def _same(arrays: Sequence[NDArray], others: Sequence[NDArray]) -> bool:
    return len(arrays) == len(others) and all(map(np.array_equal, arrays, others))


Propose = Callable[[Evidence], Iterable[Candidate]]


def of_places(*ids: str) -> Propose:
    """What differs at these places in the probe's own calls; two changes of one only if one does not explain it."""

    def propose(evidence: Evidence) -> Iterator[Bug]:
        for thoroughly in (False, True):
            yield from at_places(evidence, evidence.problems, ids, thoroughly=thoroughly)
            if evidence.explained:
                return

    return propose


def anywhere(evidence: Evidence, problems: Sequence[Problem]) -> Iterator[Bug]:
    """What differs at any place, the latest first."""
    ids = [id for id in PLACES if not id.endswith((".weight", ".bias", ".vector", "additive_hidden", "inside"))]
    yield from at_places(evidence, problems, ids)


# Orders that are blind --------------------------------------------------------------------------------------


def reordered(ids: Iterable[str], axes: Sequence[str] = ()) -> Iterator[Bug]:
    """Each order of each of some axes (default: all) at each place: nothing is read for it."""
    for place in (PLACES[id] for id in ids):
        for change in order_changes(place.axes):
            if not axes or any(change.slug.startswith(f"{axis.replace(' ', '-')}-") for axis in axes):
                yield fault(place, change)


# Numbers ----------------------------------------------------------------------------------------------------


def amounts(evidence: Evidence, made: Callable[[Expression], Bug], start: float = 0.5) -> Iterator[Bug]:
    """A bug that has a number, with the one with which the model gives the subject's output in each call."""
    numbers: list[tuple[float, Setting]] = []
    for problem in evidence.problems:
        got, base = evidence.got(problem), evidence.made(problem)
        asked = evidence.asker.rounded(problem)
        with_it = evidence.variants.run(asked, (*evidence.model, made(constant(start))))
        if got is None or base is None or not with_it or not (with_it["output"] - base).any():
            continue

        def off(number: float, asked: Problem = asked, got: NDArray = got) -> NDArray:
            arrays = evidence.variants.run(asked, (*evidence.model, made(constant(number))))
            return np.ravel(arrays["output"] - got) if arrays else np.full(1, np.nan)

        enough = 1e4 * evidence.asker.unit * max(1.0, float(np.abs(got).max(initial=0.0)))
        number = solve(off, (start,), enough)
        if number is None:
            return
        numbers.append((number, Setting.of(problem)))
    yield from map(made, expressions_of(numbers, unit=100 * evidence.asker.unit))


def pairs(*sides: Sequence[Bug], most: int = 4) -> Iterator[tuple[Bug, ...]]:
    """One bug of each side, together."""
    yield from product(*(side[:most] for side in sides))
