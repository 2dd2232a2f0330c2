"""Batches: everything that items may do to each other, for the probes that show several of them."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.experiments.candidates.calls.conditions import consistent, of_places, of_sizes
from conformance.experiments.candidates.calls.items import all_of_items, exchanged
from conformance.experiments.candidates.calls.mixtures import mixtures
from conformance.experiments.candidates.calls.places import (
    factors_where,
    filed_where,
    reordered,
    seen_calls,
    seen_places,
    simple_where,
)
from conformance.experiments.view import View
from conformance.zoo.bug import Bug

MOST_NAMED = 3
"""Conditions under which every bug on file is tried."""


def of_values(view: View) -> Iterator[Bug]:
    """Where scores can't show: values, heads, outputs."""
    yield from all_of_items()
    yield from mixtures(view, ("values", "heads", "output"))
    yield from of_some(view)


def of_scores(view: View) -> Iterator[Bug]:
    """Where scores show too."""
    yield from all_of_items()
    yield from mixtures(view, ("queries", "keys", "scores", "weights", "values", "output"))
    yield from of_some(view)


def of_bias(view: View) -> Iterator[Bug]:
    """Where the mask's bias shows too."""
    yield from exchanged(("bias",))
    yield from mixtures(view, ("bias",))
    yield from of_scores(view)


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
