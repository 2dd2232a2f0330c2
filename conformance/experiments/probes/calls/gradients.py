r"""Gradients of plain calls, from the output backwards; other calls and layers have theirs in the modules after this.

Every gradient is linear in the array of each backward step, and all gradients are seen. So for a step that gives
(1 - c) x + c T(x) where x was right, c is read off, whatever comes after the step:

    g = g_1 + c (g_T - g_1)

with the model's gradients g_1 as they are and g_T with T(x) in place of x: see `readings.gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from conformance.cases.problem import Problem
from conformance.experiments.candidates.gradients import wrong_gradients
from conformance.experiments.designs import CONFIGS, generic
from conformance.experiments.lab import MOST_CONFIGS, Lab
from conformance.experiments.probe import Probe
from mha_core import AttentionConfig

WITH_PLAIN = 2
"""Plain calls that each probe has besides its own."""

FORMULA = r"g = g_1 + c\,(g_T - g_1)"


@lru_cache(maxsize=64)
def _one_item(config: AttentionConfig) -> Problem:
    return generic(config)


def plain(lab: Lab) -> Sequence[Problem]:
    """A plain call of each layer: the same problems each time."""
    return [_one_item(config) for config in lab.configs]


SEVERAL = ((3, 2, 3), (5, 1, 2), (3, 2, 3), (4, 2, 2))
"""(items, queries, keys) of calls of several items: so few that a weight's gradient tells the rows it is made of."""


def _items(lab: Lab) -> Sequence[Problem]:
    return [
        generic(config, batch=batch, query_len=query_len, key_len=key_len)
        for config, (batch, query_len, key_len) in zip(lab.configs, SEVERAL, strict=False)
    ]


def _square(lab: Lab) -> Sequence[Problem]:
    """As many queries as keys, where a transpose goes unnoticed; some subjects take no others."""
    configs = lab.configs or CONFIGS[:MOST_CONFIGS]
    return [
        generic(config, batch=2, query_len=length, key_len=length)
        for config, length in zip(configs, (6, 9, 6, 9), strict=False)
    ]


def _magnitudes(lab: Lab) -> Sequence[Problem]:
    return [generic(config, cotangent=factor) for config in lab.configs for factor in (1e-3, 1e3)]


def gradient_probe(id: str, says: str, problems: Callable[[Lab], Sequence[Problem]], unknown: str = "") -> Probe:
    """A probe of all gradients of some problems, and of plain calls, so that what is said of these holds for those."""

    def with_plain(lab: Lab) -> Sequence[Problem]:
        own = problems(lab)
        return own if problems is plain else [*own, *plain(lab)[:WITH_PLAIN]]

    return Probe(id, says, FORMULA, with_plain, propose=wrong_gradients, gradients=True, unknown=unknown)


PROBES: tuple[Probe, ...] = (
    gradient_probe("gradients", "All gradients of a plain call of one item.", plain, "whether its gradients are right"),
    gradient_probe("gradients-of-items", "All gradients of calls of 3 to 5 items.", _items),
    gradient_probe("gradients-of-square-calls", "As many queries as keys.", _square),
    gradient_probe("gradients-of-magnitudes", "Small and large cotangents: clipping.", _magnitudes),
)
