"""Lengths: a sweep over both lengths tells which calls, queries and keys differ, and what befalls them.

Calls that do not differ have the model's own arrays; those of a few that do are solved for, and a change is fitted to
all of them, with the condition that tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from conformance.cases.problem import Problem
from conformance.measure.designs import EQUAL_SCORES, generic
from conformance.measure.evidence import Evidence, fits
from conformance.measure.faults import only_at
from conformance.measure.grammar.sample import Sample
from conformance.measure.grammar.where import Where, calls_changes, conditions_of_samples, parts_of
from conformance.measure.places import PLACES, fault
from conformance.measure.propose.mask_places import ARRAYS, mask_fault
from conformance.measure.propose.masks import read_allowed
from conformance.measure.propose.steps import fitted
from conformance.measure.read.call import Call
from conformance.measure.read.fit import gives, one_change
from conformance.measure.read.solve import sample_of, solved
from conformance.zoo.blocked import keys, queries
from conformance.zoo.blocked.queries import in_blocks_of
from conformance.zoo.bug import Bug
from conformance.zoo.registry import all_bugs, bugs_of_large_blocks
from mha_core import AttentionConfig

Sizes = tuple[int, int]

SWEEP: tuple[Sizes, ...] = (
    *((2, keys) for keys in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 16, 17, 33)),
    *((queries, 3) for queries in (1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 33)),
    *((4, 4), (5, 5), (8, 8), (9, 5)),
)
"""(Lq, Lk) of the sweep: most numbers up to 9, and some around powers of two."""

IDS = ("output", "heads", "kept_weights", "weights", "sums", "values", "scores", "queries", "keys")

MOST_SOLVED, MOST_CONDITIONS, FEW = 4, 6, 4
"""Calls of the sweep that are solved for; conditions that are followed up; numbers that blocks are tried with."""


@lru_cache(maxsize=64)
def sweep(config: AttentionConfig, *, equal_scores: bool) -> tuple[Problem, ...]:
    """The problems of the sweep."""
    weights = EQUAL_SCORES if equal_scores else {}
    return tuple(generic(config, query_len=one, key_len=other, weights=weights) for one, other in SWEEP)


def some_of_sweep(
    configs: Sequence[AttentionConfig], equal: Sequence[Sizes], generic: Sequence[Sizes]
) -> list[Problem]:
    """Some calls of the sweep, with equal and with generic scores."""
    both = [*((True, one) for one in equal), *((False, one) for one in generic)]
    return [sweep(config, equal_scores=are)[SWEEP.index(one)] for config in configs[:1] for are, one in both]


def of_lengths(evidence: Evidence) -> Iterator[Bug]:
    """What depends on lengths or places; only if it gives all of the sweep."""
    asker = evidence.asker
    sweeps = [sweep(config, equal_scores=equal) for equal in (True, False) for config in asker.configs[:1]]
    narrowly = not {*evidence.problems} & {one for problems in sweeps for one in problems}
    if narrowly and asker.costs.slow:
        return  # a sweep would take all the time of a subject that compiles for each size
    for problems in sweeps:
        seen = replace(evidence, problems=tuple(one for one in problems if asker.ask(one) is not None))
        differing = list(seen.differing())
        rest = [one for one in seen.problems if one not in differing]
        tried: set[str] = set()
        for bug in _of_sweep(evidence, differing, rest, narrowly=narrowly) if differing else ():
            model = (*evidence.model, bug)
            order = (*differing, *rest)
            if bug.id not in tried and all(fits(asker, evidence.variants, one, model) for one in order):
                yield bug
            tried.add(bug.id)


def of_large(evidence: Evidence) -> Iterator[Bug]:
    """Blocks of sizes that small calls do not see; and what depends on lengths."""
    yield from bugs_of_large_blocks()
    yield from of_lengths(evidence)


def _of_sweep(
    evidence: Evidence, differing: Sequence[Problem], rest: Sequence[Problem], *, narrowly: bool
) -> Iterator[Bug]:
    seen = [sample for problem in (*differing, *rest) if (sample := _seen(evidence, problem)) is not None]
    parts = _parts(seen)
    if not rest and not parts:
        return  # what befalls all calls is no matter of lengths
    conditions = [*parts, *conditions_of_samples(seen)][:MOST_CONDITIONS] if rest else parts
    if narrowly and not conditions:
        return
    numbers = (int(number) for condition in conditions for number in re.findall(r"\d+", condition.slug))
    for number in [number for number in dict.fromkeys(numbers) if number > 1][:FEW]:
        yield from (in_blocks_of(bug, number) for bug in (*queries.BUGS, *keys.KEY_BLOCKS))
    some = [one for one in differing if one.sizes.query_len * one.sizes.key_len <= 40][:MOST_SOLVED]
    for place in (PLACES[id] for id in IDS):
        read = [(one, solved(evidence, one, place)) for one in some]
        read += [(one, (own, own)) for one in rest if (own := Call(evidence, one, place).own) is not None]
        samples = [sample_of(evidence, one, *both, place.axes) for one, both in read if both is not None]
        yield from (fault(place, change) for change in fitted(samples, place))
    yield from _unasked(evidence, some, rest)
    for condition in conditions[:2]:
        limited = (only_at(bug, condition) for bug in all_bugs() if not bug.equivalent)
        yield from (bug for bug in limited if bug is not None)


def _seen(evidence: Evidence, problem: Problem) -> Sample | None:
    """The output of a call beside the model's; one key has the weight 1, whatever is wrong with scores."""
    got, made = evidence.got(problem), evidence.made(problem)
    if got is None or made is None or problem.sizes.key_len < 2:
        return None
    return sample_of(evidence, problem, got, made, ("item", "query", "channel"))


def _parts(seen: Sequence[Sample]) -> list[Where]:
    if not any(sample.differs for sample in seen):
        return []
    return [part for parts in parts_of(seen) for part in parts if part.axes == ("query",)][:MOST_CONDITIONS]


def _unasked(evidence: Evidence, some: Sequence[Problem], rest: Sequence[Problem]) -> Iterator[Bug]:
    """Keys without a weight where the definition gives them one: a window, blocks or a stride that nobody asked for."""
    place = ARRAYS["always"]
    samples = []
    for problem in (*some, *rest):
        allowed = read_allowed(evidence, problem)
        if allowed is not None and allowed.shape[-1] > 1:  # a lone key has the weight 1, whatever is wrong
            own = np.ones(allowed.shape)
            samples.append(sample_of(evidence, problem, allowed * 1.0, own, place.axes))
    changes = fitted(samples, place)
    if not changes and samples:
        changes = [change for change in calls_changes(samples, one_change) if gives(change, samples)]
    yield from (mask_fault(place, change) for change in changes)
