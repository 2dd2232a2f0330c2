"""Several items with equal scores: whether values, heads and outputs are each item's own.

o_b = sum_b' M_bb' W_o R mean_j (W_v x_b'j + b_v) + b_o, where M is the identity
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.batches import of_values
from conformance.experiments.candidates.calls.circumstances import ITEMS, asked_in
from conformance.experiments.designs import EQUAL_SCORES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe

BATCHES = (2, 3, 4, 5)


def _equal(lab: Lab) -> Sequence[Problem]:
    configs = [lab.configs[index % len(lab.configs)] for index in range(len(BATCHES))] if lab.configs else []
    return [
        generic(config, batch=batch, query_len=2, key_len=3, weights=EQUAL_SCORES)
        for config, batch in zip(configs, BATCHES, strict=False)
    ]


def _among_others(lab: Lab) -> Sequence[Problem]:
    return asked_in(ITEMS, [generic(config, weights=EQUAL_SCORES) for config in lab.configs[:3]])


PROBES = (
    Probe(
        "items-of-equal-scores",
        "Batches of 2 to 5 items with equal scores and no mask: values, heads and outputs that are another item's.",
        r"o_{bi} = \sum_{b'} M_{bb'} W_o R \frac{1}{L_k} \sum_j (W_v x_{b'j} + b_v) + b_o, \quad M = I",
        _equal,
        of_values,
        unknown="what items of a batch do to each other",
    ),
    Probe(
        "among-items-of-equal-scores",
        "One call as each item of batches of 2 to 4, with equal scores: as if alone.",
        r"o_b(x_1, \ldots, x_B) = o(x_b)",
        _among_others,
        circumstances=ITEMS,
    ),
)
