"""One key alone: its weight is 1 whatever it scores, so the output is the output projection of its value.

output[b, i] = W_o [R v_0] + b_o,  v_0 = W_v x + b_v,  R repeats each value head for its query heads
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.cases.problem import Problem
from conformance.experiments.designs import NO_BIASES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe


def _one_key(lab: Lab) -> Sequence[Problem]:
    return [generic(config, query_len=2, key_len=1, weights=NO_BIASES) for config in lab.configs]


def _one_key_with_biases(lab: Lab) -> Sequence[Problem]:
    return [generic(config, query_len=2, key_len=1) for config in lab.configs]


PROBES = (
    Probe(
        "one-key",
        "One key, no biases: its weight is 1, so only values, heads and the output projection can show.",
        r"o_{bi} = W_o R W_v x_{b0}",
        _one_key,
    ),
    Probe(
        "one-key-with-biases",
        "One key, with biases.",
        r"o_{bi} = W_o R (W_v x_{b0} + b_v) + b_o",
        _one_key_with_biases,
    ),
)
