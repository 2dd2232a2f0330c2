"""Every candidate on the values' way to the output, as one list: those that need no number to be measured."""

from __future__ import annotations

from functools import cache

from conformance.experiments.candidates.functions import functions_otherwise
from conformance.experiments.candidates.heads import heads_otherwise
from conformance.experiments.candidates.parameters import parameters_otherwise
from conformance.experiments.candidates.sources import sources_otherwise
from conformance.experiments.candidates.steps import PLACES, orders_on
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
