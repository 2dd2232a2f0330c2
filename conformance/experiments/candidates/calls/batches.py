"""Batches: everything that items may do to each other, for the probes that show several of them."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.cases.problem import Problem
from conformance.experiments.candidates.anywhere import changes_at
from conformance.experiments.candidates.calls.conditions import consistent, of_places, of_sizes
from conformance.experiments.candidates.calls.items import all_of_items
from conformance.experiments.candidates.calls.places import (
    factors_where,
    filed_where,
    reordered,
    seen_calls,
    seen_places,
    simple_where,
)
from conformance.experiments.candidates.scores.features import of_mask_bias
from conformance.experiments.view import View
from conformance.zoo.bug import Bug

OF_SCORES = ("output", "heads", "kept_weights", "weights", "values", "scores", "similarity", "keys", "queries")

MOST_PROBLEMS = 4

MOST_NAMED = 3
"""Conditions under which every bug on file is tried."""


def of_values(view: View) -> Iterator[Bug]:
    """Where scores can't show: values, heads, outputs."""
    yield from all_of_items()
    yield from changes_at(view, _several(view), ("output", "heads", "values"))
    yield from of_some(view)


def of_scores(view: View) -> Iterator[Bug]:
    """Where scores show too."""
    yield from all_of_items()
    yield from changes_at(view, _several(view), OF_SCORES)
    yield from of_some(view)


def of_bias(view: View) -> Iterator[Bug]:
    """Where the mask's bias shows too."""
    yield from of_mask_bias(view)
    yield from of_scores(view)


def _several(view: View) -> list[Problem]:
    return [problem for problem in view.problems if problem.sizes.batch > 1][:MOST_PROBLEMS]


def of_some(view: View) -> Iterator[Bug]:
    """What befalls some items, or batches of some sizes."""
    most = max((problem.sizes.batch for problem in view.problems), default=1)
    numbers = range(1, most + 1)
    conditions = (
        consistent((*of_places("item", numbers),), seen_places(view, view.problems, "item"))[:MOST_NAMED]
        + consistent(of_sizes("item", numbers), seen_calls(view, view.problems))[:MOST_NAMED]
    )
    yield from reordered("item", range(2, min(most, 9) + 1))
    yield from factors_where(view, list(view.differing())[:4], conditions)
    yield from simple_where(conditions)
    yield from filed_where(conditions)
