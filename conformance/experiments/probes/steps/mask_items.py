"""Masks of several items with equal scores: whether each item has its own lengths, keys and offset.

weights[b, h, i, j] = allowed[b, h, i, j] / sum_k allowed[b, h, i, k]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.circumstances import MASKS, asked_in
from conformance.experiments.designs import EQUAL_SCORES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.masks.candidates import proposals
from conformance.experiments.masks.sources import given
from conformance.experiments.probe import Probe
from conformance.experiments.probes.steps.masks import EQUAL, pattern
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, AttentionMask

BATCHES, QUERY_LEN, KEY_LEN = (3, 5), 4, 7
"""Items of each layer's calls: orders of some of them alone are told apart by both."""


def _masks(config: AttentionConfig, batch: int) -> list[AttentionMask]:
    heads, lens = config.num_heads, np.array([5, 2, 3, 6, 4])[:batch]
    shapes = [(batch, 1, 1, KEY_LEN), (batch, 1, QUERY_LEN, KEY_LEN), (batch, heads, QUERY_LEN, KEY_LEN)]
    of_queries = np.array([[3, 2, 5, 6], [6, 3, 2, 4], [2, 5, 4, 3], [4, 6, 3, 2], [5, 4, 6, 5]])[:batch]
    allowed = [AttentionMask(allowed=pattern(shape, 4)) for shape in shapes]
    return [
        AttentionMask(valid_lens=lens),
        AttentionMask(valid_lens=of_queries),
        *allowed,
        AttentionMask(bias=np.where(pattern(shapes[1], 6), 0.0, -np.inf)),
        AttentionMask(causal=True, query_offset=np.array([2, 0, 1, 4, 3])[:batch]),
        AttentionMask(window=(2, 1), query_offset=np.array([1, 3, 0, 2, 4])[:batch]),
        AttentionMask(valid_lens=lens, causal=True),
    ]


def _problems(lab: Lab) -> Sequence[Problem]:
    return [
        generic(config, batch=batch, query_len=QUERY_LEN, key_len=KEY_LEN, mask=mask, weights=EQUAL)
        for config, batch in zip(lab.configs, BATCHES, strict=False)
        for mask in _masks(config, batch)
    ]


def _measured(view: View) -> Iterator[Bug]:
    wrong = next(view.differing(), None)
    if wrong is None:
        return
    mask = wrong.inputs.mask
    yield from proposals(view, (*given(mask), *(("offset",) if mask.has_positions else ())))


def _alike(lab: Lab) -> Sequence[Problem]:
    return asked_in(MASKS, [generic(config, weights=EQUAL_SCORES) for config in lab.configs[:3]])


PROBES = (
    Probe(
        "mask-items",
        "Three and five items, each with a mask of its own from one source, equal scores.",
        r"a_{bhij} = m_{bhij} / \sum_k m_{bhik}",
        _problems,
        _measured,
        unknown="whether each item of a batch has its own mask",
    ),
    Probe(
        "calls-alike-of-equal-scores",
        "Masks that hide nothing, with equal scores: all as without them.",
        r"o(x, m) = o(x) \quad \text{where} \quad m_{ij} = 1",
        _alike,
        circumstances=MASKS,
    ),
)
