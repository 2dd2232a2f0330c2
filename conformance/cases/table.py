"""The table of cases. Sizes are pairwise different unless a case says why not."""

from functools import cache

from conformance.cases import sequences, topics
from conformance.cases.case import Case
from conformance.cases.sequence import Asked, CallSequence
from conformance.discovery import members, select_by_id


@cache
def all_cases() -> tuple[Case, ...]:
    """Return every case of one call, from all modules in `topics`; a new module needs no registration."""
    return tuple(case for topic in members(topics) for case in topic.CASES)


@cache
def all_sequences() -> tuple[CallSequence, ...]:
    """Return every sequence of calls."""
    return tuple(one for module in members(sequences) for one in module.SEQUENCES)


UNKNOWN = "case {} is not known; `mha check --list` lists them"


def select(patterns: tuple[str, ...]) -> list[Case]:
    """Return the cases whose id matches one of the patterns (shell wildcards); all of them if there is none.

    >>> [case.id for case in select(("one-*y",))]
    ['one-query', 'one-key']
    >>> select(("primes",))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: case 'primes' is not known; `mha check --list` lists them; did you mean prime?
    """
    return select_by_id(all_cases(), patterns, UNKNOWN)


def select_asked(patterns: tuple[str, ...]) -> list[Asked]:
    """Return the cases, then the sequences, whose id matches a pattern, as `select` does.

    >>> [asked.id for asked in select_asked(("one-query", "sequence-sh*"))]
    ['one-query', 'sequence-shapes']
    """
    return select_by_id((*all_cases(), *all_sequences()), patterns, UNKNOWN)
