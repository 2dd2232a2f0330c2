r"""Scores without a mask: queries against keys, their scale, and which key head a query head reads.

Ratios of weights tell differences of scores, whatever the softmax divides by:

    log a_ij - log a_ik = s_ij - s_ik

With weights that are all equal on one side, only the other side's projection can show; then both sides are met.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from conformance.cases.problem import Problem
from conformance.experiments.candidates.scores.shown import up_to_scores
from conformance.experiments.candidates.scores.sides import longer
from conformance.experiments.designs import NO_BIASES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe
from mha_core import AttentionConfig


def _even(config: AttentionConfig, projection: str) -> dict[str, np.ndarray]:
    """W that gives every channel of every head the mean of the input's channels."""
    rows, columns = {
        "q_proj": (config.num_heads * config.head_dim, config.query_dim),
        "k_proj": (config.num_kv_heads * config.head_dim, config.key_dim),
    }[projection]
    return {f"{projection}.weight": np.full((rows, columns), 1.0 / columns)}


def _rows(length: int, width: int, first: float, last: float) -> np.ndarray:
    """(1, length, width): rows of equal channels, from `first` to `last`."""
    return np.broadcast_to(np.linspace(first, last, length)[None, :, None], (1, length, width)).copy()


LENGTHS = ((3, 5), (2, 6), (4, 7), (3, 4))
"""Queries and keys of the layers' calls: different ones, so that what depends on a length is no constant."""


def _calls(lab: Lab) -> Iterator[tuple[AttentionConfig, int, int]]:
    for place, config in enumerate(lab.configs):
        yield config, *LENGTHS[place % len(LENGTHS)]


def _size_alone(lab: Lab) -> Sequence[Problem]:
    return [
        generic(
            config,
            query_len=1,
            key_len=key_len,
            weights={**NO_BIASES, **_even(config, "q_proj"), **_even(config, "k_proj")},
            queries=_rows(1, config.query_dim, 0.4 + 0.2 * key_len, 0.4 + 0.2 * key_len),
            keys=_rows(key_len, config.key_dim, -0.6, 0.9),
        )
        for config, _, key_len in _calls(lab)
    ]


def _queries_alone(lab: Lab) -> Sequence[Problem]:
    return [
        generic(
            config,
            query_len=query_len,
            key_len=key_len,
            weights={**NO_BIASES, **_even(config, "k_proj")},
            keys=_rows(key_len, config.key_dim, -0.6, 0.9),
        )
        for config, query_len, key_len in _calls(lab)
    ]


def _keys_alone(lab: Lab) -> Sequence[Problem]:
    return [
        generic(
            config,
            query_len=query_len,
            key_len=key_len,
            weights={**NO_BIASES, **_even(config, "q_proj")},
            queries=_rows(query_len, config.query_dim, 0.7, 1.3),
        )
        for config, query_len, key_len in _calls(lab)
    ]


@lru_cache(maxsize=64)
def _plain(config: AttentionConfig, query_len: int, key_len: int) -> Problem:
    return generic(config, query_len=query_len, key_len=key_len, weights=NO_BIASES)


def plain_calls(lab: Lab) -> Sequence[Problem]:
    """A call of each layer in which everything up to the scores can show."""
    return lab.nearest([_plain(*call) for call in _calls(lab)])


def _square(lab: Lab) -> Sequence[Problem]:
    return [_plain(config, key_len, key_len) for config, _, key_len in _calls(lab)]


PROBES = (
    Probe(
        "score-size",
        "One query; all channels and heads of queries and keys alike, so only the size of scores can show.",
        r"\log a_{j} - \log a_{k} = c\, d\, \bar q\, (\bar k_j - \bar k_k)",
        _size_alone,
        up_to_scores,
    ),
    Probe(
        "queries",
        "All channels and heads of the keys alike, so only the queries can show: their heads and inputs.",
        r"\log a_{ij} - \log a_{ik} = c\, (\sum_c q_{ic}) (\bar k_j - \bar k_k)",
        _queries_alone,
        up_to_scores,
    ),
    Probe(
        "keys",
        "All channels and heads of the queries alike, so only the keys can show.",
        r"\log a_{ij} - \log a_{ik} = c\, \bar q_i \sum_c (k_{jc} - k_{kc})",
        _keys_alone,
        up_to_scores,
    ),
    Probe(
        "scores",
        "Queries and keys without biases or mask: the bilinear form of the scores.",
        r"\log a_{ij} - \log a_{ik} = c\, q_i^\top (k_j - k_k)",
        plain_calls,
        up_to_scores,
        unknown="Scores: the subject took no call without a mask.",
    ),
    Probe(
        "scores-square",
        "As many queries as keys, so what exchanges them can show.",
        r"\log a_{ij} - \log a_{ik} = c\, q_i^\top (k_j - k_k)",
        _square,
        up_to_scores,
    ),
    Probe(
        "scores-longer",
        "More queries and keys: what is wrong at some positions only, or in longer calls, shows.",
        r"q'_i = \arg\min_q |S'_i - c\, q\, \bar K^\top|, \quad \bar k'_j = \arg\min_k |\bar S'_j - c\, k\, Q^\top|",
        longer,
        up_to_scores,
    ),
)
