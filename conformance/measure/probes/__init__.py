"""The probes in their order: values, masks, scores, then what calls may have besides; and probes by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from conformance.cases.select import select_by_id
from conformance.measure.probe import Probe
from conformance.measure.probes import around, calls, gradients, items, masked, masks, scores, sums, values


@cache
def all_probes() -> tuple[Probe, ...]:
    """Every probe, in the order in which they run."""
    one_key = (*values.PROBES, *sums.PROBES, *masks.PROBES)
    with_scores = (*scores.PROBES, *around.PROBES, *items.PROBES, *masked.PROBES)
    return (*one_key, *with_scores, *calls.PROBES, *masked.EXTREMES, *gradients.PROBES)


def select_probes(patterns: Sequence[str], *, alone: bool = False) -> list[Probe]:
    """The probes of these ids (shell wildcards), and unless `alone` those before them, which they build on.

    Raises:
        SpecError: a pattern matches none.
    """
    known = all_probes()
    chosen = select_by_id(known, tuple(patterns), "probe {} is not known; `mha diagnose --details` lists them")
    if alone:
        return chosen
    return list(known[: max(map(known.index, chosen), default=-1) + 1])
