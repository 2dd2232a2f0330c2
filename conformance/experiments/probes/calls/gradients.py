r"""Gradients of plain calls, from the output backwards; other calls and layers have theirs in the modules after this.

Every gradient is linear in the array of each backward step, and all gradients are seen. So for a step that gives
(1 - c) x + c T(x) where x was right, c is read off, whatever comes after the step:

    g = g_1 + c (g_T - g_1)

with the model's gradients g_1 as they are and g_T with T(x) in place of x: see `readings.gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.cases.problem import Problem
from conformance.experiments.designs import CONFIGS, generic
from conformance.experiments.lab import MOST_CONFIGS, Lab
from conformance.experiments.probe import Probe

FORMULA = r"g = g_1 + c\,(g_T - g_1)"


def _plain(lab: Lab) -> Sequence[Problem]:
    return [generic(config) for config in lab.configs]


def _items(lab: Lab) -> Sequence[Problem]:
    return [generic(config, batch=3, query_len=4, key_len=3) for config in lab.configs]


def _square(lab: Lab) -> Sequence[Problem]:
    """As many queries as keys, where a transpose goes unnoticed; some subjects take no others."""
    configs = lab.configs or CONFIGS[:MOST_CONFIGS]
    return [
        generic(config, batch=2, query_len=length, key_len=length)
        for config, length in zip(configs, (6, 9, 6, 9), strict=False)
    ]


def _magnitudes(lab: Lab) -> Sequence[Problem]:
    return [generic(config, cotangent=factor) for config in lab.configs for factor in (1e-3, 1e3)]


PROBES: tuple[Probe, ...] = (
    Probe(
        "gradients",
        "All gradients of a plain call of one item.",
        FORMULA,
        _plain,
        gradients=True,
        unknown="whether its gradients are right",
    ),
    Probe("gradients-of-items", "All gradients of a call of three items.", FORMULA, _items, gradients=True),
    Probe("gradients-of-square-calls", "As many queries as keys.", FORMULA, _square, gradients=True),
    Probe("gradients-of-magnitudes", "Small and large cotangents: clipping.", FORMULA, _magnitudes, gradients=True),
)
