r"""Layers of equal widths: an array that is taken for another shows only where their shapes agree.

What queries, keys, values and the output are in a layer whose sizes all differ is known by now:

    o_bi = W_o sum_j a_ij (W_v x_bj + b_v) + b_o,   W_q, W_k, W_v, W_o all (E, E)
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.cases.problem import Problem
from conformance.experiments.candidates.equal_shapes import where_equal
from conformance.experiments.designs import NO_BIASES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe
from mha_core import AttentionConfig
from mha_core.config import ProjectionBias

CONFIGS = {
    bias: (
        AttentionConfig(15, 3, bias=bias),
        AttentionConfig(8, 2, bias=bias),
        AttentionConfig(12, 4, num_kv_heads=2, bias=bias),
    )
    for bias in (True, False)
}
"""With biases and without; in the last layer W_q and W_o have one shape, W_k and W_v another."""

LENGTHS = ((4, 4), (3, 5), (4, 4))


def _configs(lab: Lab) -> list[AttentionConfig]:
    """The layers; without biases if the subject takes none; not those of a subject whose sizes are fixed."""
    if lab.fixed_weights is not None:
        return []
    return list(CONFIGS[any(config.bias != ProjectionBias() for config in lab.configs)])


def _one_key(lab: Lab) -> Sequence[Problem]:
    return [generic(config, query_len=1, key_len=1, weights=NO_BIASES) for config in _configs(lab)]


def _several_keys(lab: Lab) -> Sequence[Problem]:
    return [
        generic(config, query_len=query_len, key_len=key_len, weights=NO_BIASES)
        for config, (query_len, key_len) in zip(_configs(lab), LENGTHS, strict=False)
    ]


def _with_biases(lab: Lab) -> Sequence[Problem]:
    return [
        generic(config, query_len=query_len, key_len=key_len)
        for config, (query_len, key_len) in zip(_configs(lab), LENGTHS, strict=False)
    ]


PROBES = (
    Probe(
        "equal-widths-one-key",
        "One query and one key in layers of equal widths, no biases: a value weight, an output weight or an input "
        "that is another one.",
        r"o_b = W_o W_v x_b",
        _one_key,
        where_equal,
    ),
    Probe(
        "equal-widths",
        "Several keys in layers of equal widths, no biases: also a weight or an input of queries or keys that is "
        "another one.",
        r"\log a_{ij} - \log a_{ik} = c\, (W_q x_i)^\top W_k (x_j - x_k)",
        _several_keys,
        where_equal,
    ),
    Probe(
        "equal-widths-with-biases",
        "The same with biases: one that is another projection's.",
        r"o_{bi} = W_o \sum_j a_{ij} (W_v x_{bj} + b_v) + b_o",
        _with_biases,
        where_equal,
        unknown="layers of equal widths, where one array may be taken for another: the subject takes none",
    ),
)
