"""Known deviations: what a library is known to do, by the table of `mha deviations`."""

from __future__ import annotations

from mha.invariance.relations.row import Known, Relation


def known_deviation(relation: Relation, known: Known) -> str | None:
    """The id of the deviation that a broken relation is, or None."""
    return None
