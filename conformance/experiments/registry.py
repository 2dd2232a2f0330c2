"""The probes in their order, and chosen by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from conformance.cases.select import select_by_id
from conformance.discovery import members
from conformance.experiments import probes as folder
from conformance.experiments.probe import Probe


@cache
def all_probes() -> tuple[Probe, ...]:
    """Every probe: the tuples PROBES of all modules of the folders of `probes/`, in their order."""
    topics = (topic for part in members(folder, folders=True) for topic in members(part))
    return tuple(probe for topic in topics for probe in topic.PROBES)


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
