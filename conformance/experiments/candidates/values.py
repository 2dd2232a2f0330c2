"""Every candidate on the values' way to the output, as one list: those that need no number, and plain factors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from conformance.experiments.candidates.amounts import added_amounts
from conformance.experiments.candidates.fitted import HEADS, OUTPUT, factors_on
from conformance.experiments.candidates.functions import functions_otherwise
from conformance.experiments.candidates.heads import heads_otherwise
from conformance.experiments.candidates.parameters import parameters_otherwise
from conformance.experiments.candidates.sources import sources_otherwise
from conformance.experiments.candidates.steps import PLACES, orders_on
from conformance.experiments.view import View
from conformance.zoo.bug import Bug


@cache
def all_otherwise() -> tuple[Bug, ...]:
    """Every one of them, the plainest first."""
    return (
        *parameters_otherwise(),
        *heads_otherwise(),
        *sources_otherwise(),
        *orders_on(PLACES),
        *functions_otherwise(),
    )


def plain_otherwise(view: View) -> Iterator[Bug]:
    """Those, other factors on the output and on what makes the heads, and so much of something else added."""
    yield from all_otherwise()
    yield from factors_on(view, OUTPUT)
    yield from factors_on(view, HEADS, ("value_inputs", "v_proj", "new_values", "values", "kept_weights", "merged"))
    yield from added_amounts(view)
