"""The batch: many items, and one item repeated; what a few do to each other is probed among the steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.batches import of_scores
from conformance.experiments.designs import changed, generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe
from mha_core import AttentionConfig, AttentionMask

MANY = (6, 7, 8, 9, 16, 17)


@lru_cache(maxsize=64)
def _repeated(config: AttentionConfig) -> Problem:
    """Three items, all of them the first."""
    problem = generic(config, batch=3)
    given = problem.inputs
    queries, keys, values = (np.repeat(one[:1], 3, 0) for one in (given.queries, given.keys, given.values))
    return changed(problem, queries=queries, keys=keys, values=values)


@lru_cache(maxsize=64)
def _masked(config: AttentionConfig, batch: int) -> Problem:
    lens = 1 + np.arange(batch) % 4
    return generic(config, batch=batch, query_len=2, key_len=4, mask=AttentionMask(valid_lens=lens))


def _problems(lab: Lab) -> Sequence[Problem]:
    if not lab.configs:
        return ()
    configs = [lab.configs[index % len(lab.configs)] for index in range(len(MANY))]
    some = [generic(config, batch=batch, query_len=2, key_len=3) for config, batch in zip(configs, MANY, strict=True)]
    return [_repeated(configs[0]), *some, _masked(configs[0], 5), _masked(configs[1], 8)]


PROBES = (
    Probe(
        "batches",
        "Batches of 6 to 17 items, one with lengths of their own, and one of equal items: all must be as if alone.",
        r"o_b(x_1, \ldots, x_B) = o(x_b)",
        _problems,
        of_scores,
        unknown="what batches of more than 5 items give",
    ),
)
