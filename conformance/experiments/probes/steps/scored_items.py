"""Several items with generic scores: whether queries, keys and weights are each item's own.

If item b gets sum_b' M_bb' of the items' queries, its scores are the same sum of their scores: M by least squares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.batches import of_bias, of_scores
from conformance.experiments.candidates.calls.circumstances import ITEMS, MASKS, asked_in
from conformance.experiments.candidates.scores.features import of_size
from conformance.experiments.candidates.scores.shown import Candidate
from conformance.experiments.designs import generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe
from conformance.experiments.view import View
from mha_core import AttentionMask

SIZES = ((2, 3, 5), (3, 4, 6), (4, 3, 3), (5, 2, 4))
"""(B, Lq, Lk), the third with Lq = Lk."""


def _generic(lab: Lab) -> Sequence[Problem]:
    configs = [lab.configs[index % len(lab.configs)] for index in range(len(SIZES))] if lab.configs else []
    return [
        generic(config, batch=batch, query_len=query_len, key_len=key_len)
        for config, (batch, query_len, key_len) in zip(configs, SIZES, strict=False)
    ]


def _with_bias(lab: Lab) -> Sequence[Problem]:
    found = []
    for config, (batch, query_len, key_len) in zip(lab.configs, SIZES[1:], strict=False):
        bias = np.random.default_rng(batch).normal(size=(batch, config.num_heads, query_len, key_len))
        mask = AttentionMask(bias=bias)
        found.append(generic(config, batch=batch, query_len=query_len, key_len=key_len, mask=mask))
    return found


def _alike(lab: Lab) -> Sequence[Problem]:
    return asked_in(CIRCUMSTANCES, [generic(config) for config in lab.configs[:3]])


CIRCUMSTANCES = (*ITEMS, *MASKS)


def _of_scores(view: View) -> Iterator[Candidate]:
    """A factor that depends on the number of items; and what items do to each other."""
    yield from of_size(view)
    yield from of_scores(view)


PROBES = (
    Probe(
        "items",
        "Batches of 2 to 5 items without a mask: queries, keys and weights that are another item's.",
        r"s_{bij} = \sum_{b'} M_{bb'}\, c\, q_{b'i}^\top k_{bj}, \quad M = I",
        _generic,
        _of_scores,
        unknown="what items of a batch do to each other",
    ),
    Probe(
        "items-with-bias",
        "Batches of 3 to 5 items, each with a bias of its own in the mask.",
        r"s_{bij} = c\, q_{bi}^\top k_{bj} + \sum_{b'} M_{bb'} B_{b'ij}, \quad M = I",
        _with_bias,
        of_bias,
        unknown="whether each item has its own bias",
    ),
    Probe(
        "calls-alike",
        "One call as each item of a batch, and under masks that hide nothing.",
        r"o(x, m) = o(x) \quad \text{where} \quad m_{ij} = 1, \qquad o_b(x_1, \ldots, x_B) = o(x_b)",
        _alike,
        circumstances=CIRCUMSTANCES,
        unknown="whether something befalls some kinds of calls or items alone",
    ),
)
