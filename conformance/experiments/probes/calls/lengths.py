r"""Lengths: parts of the queries or keys that are treated apart, as blocks are; what lengths alone bring about.

A sweep over both lengths tells where the subject differs; conditions such as "Lk is no multiple of n" or "query i >= n"
that hold exactly there are read off with their n, and what befalls those calls, queries or keys is looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.lengths import of_lengths, of_some_lengths, some_of_sweep
from conformance.experiments.designs import generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from conformance.zoo.registry import bugs_of_large_blocks

MEDIUM = ((17, 33), (33, 15), (31, 32), (3, 65), (65, 5), (64, 63))
LARGE = ((2, 129), (130, 2), (2, 257), (257, 2), (2, 515), (515, 2))


EQUAL = ((2, 4), (2, 7), (2, 17), (7, 3))
GENERIC = ((2, 4), (2, 6), (2, 7), (2, 8), (2, 9), (2, 13), (2, 33), (4, 3), (7, 3), (9, 3), (33, 3), (5, 5), (8, 8))
"""Of the sweep, what every subject is asked; all of it if these show anything."""


def _small(lab: Lab) -> Sequence[Problem]:
    return some_of_sweep(lab.configs, equal=EQUAL, generic=GENERIC)


def _of_sizes(sizes: Sequence[tuple[int, int]]) -> Callable[[Lab], Sequence[Problem]]:
    def problems(lab: Lab) -> Sequence[Problem]:
        return [
            generic(lab.configs[place % len(lab.configs)], query_len=query_len, key_len=key_len)
            for place, (query_len, key_len) in enumerate(sizes)
            if lab.configs
        ]

    return problems


def _large(view: View) -> Iterator[Bug]:
    yield from bugs_of_large_blocks()
    yield from of_some_lengths(view)


PROBES = (
    Probe(
        "lengths",
        "Calls of 1 to 33 queries and keys, with equal and with generic scores: what lengths alone bring about.",
        r"\{(L_q, L_k) : o \ne o'\}, \quad \{i : o_i \ne o'_i\}",
        _small,
        of_lengths,
        everywhere=True,
        unknown="what other lengths give",
    ),
    Probe(
        "lengths-of-dozens",
        "Calls of up to 65 queries and keys: blocks of 16, 32 and 64 begin and end within them.",
        r"\{(L_q, L_k) : o \ne o'\}",
        _of_sizes(MEDIUM),
        _large,
        unknown="what lengths of dozens give",
    ),
    Probe(
        "lengths-of-hundreds",
        "Calls of up to 515 queries or keys: blocks of 128, 256 and 512 begin and end within them.",
        r"\{(L_q, L_k) : o \ne o'\}",
        _of_sizes(LARGE),
        _large,
        unknown="what lengths of hundreds give",
    ),
)
