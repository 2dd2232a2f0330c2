"""Lengths: from a sweep over both lengths, which calls and queries differ, and what may befall those."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.blocks import filed_blocks, padded
from conformance.experiments.candidates.calls.conditions import (
    Condition,
    Seen,
    consistent,
    of_both_lengths,
    of_places,
    of_sizes,
    only_where,
)
from conformance.experiments.candidates.calls.places import (
    factors_where,
    filed_where,
    reordered,
    seen_calls,
    seen_places,
    simple,
    simple_where,
)
from conformance.experiments.candidates.calls.reach import unasked
from conformance.experiments.designs import EQUAL_SCORES, generic
from conformance.experiments.view import View, fits
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig

Sizes = tuple[int, int]

SWEEP: tuple[Sizes, ...] = (
    *((2, keys) for keys in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 16, 17, 33)),
    *((queries, 3) for queries in (1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 33)),
    *((4, 4), (5, 5), (8, 8), (9, 5)),
)
"""(Lq, Lk) of the sweep: most numbers up to 9, and some around powers of two."""

READ = ((5, 7), (9, 4), (9, 9), (2, 12))
"""(Lq, Lk) of the calls whose weights are read."""

NUMBERS = (*range(1, 18), 20, 24, 31, 32, 33)
"""Numbers that conditions are tried with."""

SOME = 6
"""Conditions of each sort that are followed up."""

FEW = 4
"""Numbers that blocks, orders and padding are tried with."""


@lru_cache(maxsize=64)
def sweep(config: AttentionConfig, *, equal_scores: bool) -> tuple[Problem, ...]:
    """The problems of the sweep."""
    weights = EQUAL_SCORES if equal_scores else {}
    return tuple(generic(config, query_len=one, key_len=other, weights=weights) for one, other in SWEEP)


@lru_cache(maxsize=64)
def _read(config: AttentionConfig) -> tuple[Problem, ...]:
    return tuple(generic(config, seed=1, query_len=one, key_len=other) for one, other in READ)


def some_of_sweep(
    configs: Sequence[AttentionConfig], *, equal: Sequence[Sizes], generic: Sequence[Sizes]
) -> list[Problem]:
    """Some calls of the sweep, with equal and with generic scores."""
    found = []
    for config in configs[:1]:
        for sizes, equal_scores in ((equal, True), (generic, False)):
            found += [sweep(config, equal_scores=equal_scores)[SWEEP.index(one)] for one in sizes]
    return found


def other_lengths(configs: Sequence[AttentionConfig]) -> list[Problem]:
    """A few calls of the sweep: what a model must give if it is more than an accident."""
    few = ((2, 4), (2, 9), (7, 3), (5, 5))
    return some_of_sweep(configs, equal=few, generic=few)


def of_lengths(view: View) -> Iterator[Bug]:
    """What depends on lengths or places, where some condition on them tells exactly what differs.

    In the sweep itself also where it tells more: an online softmax is not wrong in every call of several blocks.
    """
    swept = {
        one for config in view.lab.configs[:1] for equal in (True, False) for one in sweep(config, equal_scores=equal)
    }
    here = bool(swept & set(view.problems))
    if here or not view.lab.costs.slow:  # a sweep would take all the time of a subject that compiles for each size
        yield from _of_sweeps(view, exactly=True)
    if here:
        yield from _of_sweeps(view, exactly=False)


def of_some_lengths(view: View) -> Iterator[Bug]:
    """As `of_lengths`, where what differs is at least a part of what some condition tells."""
    yield from _of_sweeps(view, exactly=True)
    yield from _of_sweeps(view, exactly=False)


def _of_sweeps(view: View, *, exactly: bool) -> Iterator[Bug]:
    for equal_scores in (True, False):
        problems = [one for config in view.lab.configs[:1] for one in sweep(config, equal_scores=equal_scores)]
        answered = [problem for problem in problems if view.lab.ask(problem) is not None]
        order = sorted(answered, key=lambda problem: fits(view.lab, view.variants, problem, view.model))
        tried: set[str] = set()
        for bug in _of_sweep(view, answered, exactly):
            model = (*view.model, bug)
            if bug.id not in tried and all(fits(view.lab, view.variants, problem, model) for problem in order):
                yield bug
            tried.add(bug.id)


def _of_sweep(view: View, problems: Sequence[Problem], exactly: bool) -> Iterator[Bug]:
    queries = [(sizes, places) for sizes, places in seen_places(view, problems, "query") if sizes.key_len > 1]
    if not any(places.any() for _, places in queries) or all(places.all() for _, places in queries):
        return  # one key has the weight 1, whatever is wrong with scores
    calls = [(sizes, np.asarray(places.any())) for sizes, places in queries]
    sizes = _on_calls(calls, exactly)[:SOME]
    of_queries = (one for one in of_both_lengths() if one.axis == "query")
    places = consistent((*of_queries, *of_places("query", NUMBERS)), queries, exactly=exactly)[:SOME]
    numbers = _numbers([*sizes, *places])
    configs = view.lab.configs[:1]
    if not (sizes or places):
        yield from unasked(view, [one for config in configs for one in _read(config)], ())
        return
    yield from filed_blocks(numbers)
    yield from padded(numbers)
    yield from unasked(view, [one for config in configs for one in _read(config)], sizes)
    yield from simple_where([*places, *sizes])
    differing = [one for one, (_, found) in zip(problems, seen_calls(view, problems), strict=False) if found][:4]
    yield from factors_where(view, differing, [*places, *sizes])
    yield from reordered("query", numbers)
    if not places:
        yield from _of_keys(numbers)
        yield from reordered("key", numbers)
    yield from filed_where([*places[:1], *sizes[:1]])


def _on_calls(calls: Sequence[Seen], exactly: bool) -> list[Condition]:
    """Conditions on the sizes of a call that hold wherever one differs."""
    of_one = (condition for axis in ("key", "query") for condition in of_sizes(axis, NUMBERS))
    both = (condition for condition in of_both_lengths() if condition.axis is None)
    return consistent((*both, *of_one), calls, exactly=exactly)


def _numbers(conditions: Sequence[Condition]) -> list[int]:
    """The numbers in the conditions, the tightest ones' first."""
    found = [int(number) for condition in conditions for number in re.findall(r"\d+", condition.slug)]
    return [number for number in dict.fromkeys(found) if number > 1][:FEW]


def _of_keys(numbers: Sequence[int]) -> Iterator[Bug]:
    """Simple faults of the keys at some places."""
    for condition in of_places("key", numbers):
        for bug in simple():
            limited = only_where(bug, condition)
            if limited is not None:
                yield limited
