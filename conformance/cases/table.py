"""The table of cases. Sizes are pairwise different unless a case says why not."""

from __future__ import annotations

from functools import cache

from conformance.cases import topics
from conformance.cases.case import Case
from conformance.cases.select import select_by_id
from conformance.discovery import members


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case: those of each module in `topics`, which is found by being there."""
    return tuple(case for topic in members(topics) for case in topic.cases())


def select(patterns: tuple[str, ...]) -> list[Case]:
    """The cases whose id matches one of the patterns (shell wildcards); all of them if there is none.

    >>> [case.id for case in select(("one-*y",))]
    ['one-query', 'one-key']
    >>> select(("primes",))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: case 'primes' is not known; `mha cases` lists them
    """
    return select_by_id(all_cases(), patterns, "case {} is not known; `mha cases` lists them")
