"""Gradients of layers with a softcap, the additive score, a given scale, or no projections: see `gradients`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conformance.cases.problem import Problem
from conformance.experiments.designs import generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe
from conformance.experiments.probes.calls.gradients import gradient_probe
from mha_core import AttentionConfig

BARE = (
    AttentionConfig(12, 4, num_kv_heads=2, head_dim=3, value_head_dim=5, projections=False),
    AttentionConfig(10, 2, head_dim=5, value_head_dim=3, projections=False),
    AttentionConfig(18, 3, head_dim=6, value_head_dim=4, projections=False),
    AttentionConfig(8, 2, projections=False),
)


LENGTHS = ((3, 5), (2, 4), (4, 5), (3, 6))
"""Queries and keys: other ones in each layer, so that what depends on a length is no constant."""


def _softcap(lab: Lab) -> Sequence[Problem]:
    return [
        generic(replace(config, softcap=1.5), query_len=query_len, key_len=key_len)
        for config, (query_len, key_len) in zip(lab.configs, LENGTHS, strict=False)
    ]


def _additive(lab: Lab) -> Sequence[Problem]:
    sizes = (5, 6, 7, 8)
    return [
        generic(replace(config, score="additive", score_dim=size), batch=2, query_len=query_len, key_len=key_len)
        for config, size, (query_len, key_len) in zip(lab.configs, sizes, LENGTHS, strict=False)
    ]


def _scaled(lab: Lab) -> Sequence[Problem]:
    return [generic(replace(config, scale=0.7)) for config in lab.configs]


def _bare(lab: Lab) -> Sequence[Problem]:
    return [generic(config, batch=2) for config in BARE]


PROBES: tuple[Probe, ...] = (
    gradient_probe("gradients-with-scale", "A scale that is given.", _scaled),
    gradient_probe("gradients-with-softcap", "A softcap: its slope.", _softcap),
    gradient_probe(
        "gradients-of-additive-score",
        "The additive score and its parameters.",
        _additive,
    ),
    gradient_probe(
        "gradients-without-projections",
        "A layer whose inputs are the heads.",
        _bare,
    ),
)
