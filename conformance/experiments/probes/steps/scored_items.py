"""Several items with generic scores: whether queries, keys and weights are each item's own.

If item b gets sum_b' M_bb' of the items' queries, its scores are the same sum of their scores: M by least squares.
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.batches import of_scores
from conformance.experiments.designs import generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe

SIZES = ((2, 3, 5), (3, 4, 6), (4, 3, 3), (5, 2, 4))
"""(B, Lq, Lk), the third with Lq = Lk."""


def _generic(lab: Lab) -> Sequence[Problem]:
    configs = [lab.configs[index % len(lab.configs)] for index in range(len(SIZES))] if lab.configs else []
    return [
        generic(config, batch=batch, query_len=query_len, key_len=key_len)
        for config, (batch, query_len, key_len) in zip(configs, SIZES, strict=False)
    ]


PROBES = (
    Probe(
        "items",
        "Batches of 2 to 5 items without a mask: queries, keys and weights that are another item's.",
        r"s_{bij} = \sum_{b'} M_{bb'}\, c\, q_{b'i}^\top k_{bj}, \quad M = I",
        _generic,
        of_scores,
        unknown="what items of a batch do to each other",
    ),
)
