r"""Scores: queries against keys without a mask, the softmax, and what stands around the scores: biases, scale, softcap.

Ratios of weights tell differences of scores, whatever the softmax divides by:

    log a_ij - log a_ik = s_ij - s_ik,        s_ij = c \tanh(\sigma q_i^\top k_j / c) + B_ij

With weights that are all equal on one side, only the other side's projection can show; then both sides are met.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import MANY_HEADS, NO_BIASES, generic
from conformance.measure.evidence import Evidence
from conformance.measure.grammar.roundings import COMMON
from conformance.measure.places import PLACES, fault
from conformance.measure.probe import Probe, Problems
from conformance.measure.propose.scores import up_to_scores
from conformance.measure.propose.steps import Candidate, at_places
from conformance.measure.propose.weights import of_each_head, other_weights
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, reference

# Queries and keys ---------------------------------------------------------------------------------------------

LENGTHS = ((3, 5), (2, 6), (4, 7), (3, 4))
"""Queries and keys of the layers' calls: different ones, so that what depends on a length is no constant."""

LONGER = ((6, 11), (11, 6), (5, 22), (22, 5))
"""Those of longer calls: enough for several places of each kind."""


def _rows(length: int, width: int, first: float, last: float) -> NDArray:
    """(1, length, width): rows of equal channels, from `first` to `last`."""
    return np.broadcast_to(np.linspace(first, last, length)[None, :, None], (1, length, width)).copy()


def _calls(asker: Asker) -> Iterator[tuple[AttentionConfig, int, int]]:
    for place, config in enumerate(asker.configs):
        yield config, *LENGTHS[place % len(LENGTHS)]


def _alike(*, queries: bool = False, keys: bool = False) -> Problems:
    """Queries, keys or both whose channels and heads are all alike, by equal rows and a W of equal numbers."""

    def problem(config: AttentionConfig, query_len: int, key_len: int) -> Problem:
        weights: dict[str, NDArray | float] = {**NO_BIASES}
        given: dict[str, Any] = {}
        if queries:
            size, query_len = (0.4 + 0.2 * key_len, 1) if keys else (0.0, query_len)
            shape = config.num_heads * config.head_dim, config.query_dim
            weights["q_proj.weight"] = np.full(shape, 1.0 / config.query_dim)
            given["queries"] = _rows(query_len, config.query_dim, size or 0.7, size or 1.3)
        if keys:
            weights["k_proj.weight"] = np.full(
                (config.num_kv_heads * config.head_dim, config.key_dim), 1.0 / config.key_dim
            )
            given["keys"] = _rows(key_len, config.key_dim, -0.6, 0.9)
        return generic(config, query_len=query_len, key_len=key_len, weights=weights, **given)

    return lambda asker: [problem(*call) for call in _calls(asker)]


@lru_cache(maxsize=64)
def _plain(config: AttentionConfig, query_len: int, key_len: int) -> Problem:
    return generic(config, query_len=query_len, key_len=key_len, weights=NO_BIASES)


def longer(asker: Asker) -> Sequence[Problem]:
    """A call of each layer with more queries and keys than it has channels, without biases and masks."""
    calls = ((config, *LONGER[place % len(LONGER)]) for place, config in enumerate(asker.configs))
    return asker.nearest([_plain(c, max(queries, c.head_dim), max(keys, c.head_dim + 1)) for c, queries, keys in calls])


# The softmax --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _row(config: AttentionConfig) -> Problem:
    return generic(config, seed=7, query_len=4, key_len=7, weights=NO_BIASES)


def _of_each_head(evidence: Evidence) -> Iterator[Candidate]:
    """Scores, before bias and softcap, and weights with a number of each head, or of each two."""
    yield from at_places(evidence, evidence.problems, ("similarity",), thoroughly=True)
    yield from of_each_head(evidence, _calls_of_softmax(evidence.asker))


def of_softmax(evidence: Evidence) -> Iterator[Bug]:
    """Every softmax that gives the measured weights, of longer rows too."""
    return other_weights(evidence, _calls_of_softmax(evidence.asker))


def _calls_of_softmax(asker: Asker) -> list[Problem]:
    return [*asker.nearest([_row(config) for config in asker.configs[:3]]), *longer(asker)]


LITTLE = 0.1
"""Of the largest number of an output; what rounds to eight bits is off by less."""

ROUNDED = (
    *("query_inputs", "key_inputs", "value_inputs", "queries", "keys", "values", "past_keys", "past_values"),
    *("unscaled", "similarity", "scores", "weights", "heads", "merged", "output"),
    *("q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"),
)


def _rounded_or_other(evidence: Evidence) -> Iterator[Bug]:
    """Roundings of any step or matrix, if the first differing output is only a little off; and other softmaxes."""
    problem = next(evidence.differing(), None)
    got, made = (None, None) if problem is None else (evidence.got(problem), evidence.made(problem))
    off = np.inf if got is None or made is None else np.nan_to_num(got - made, nan=np.inf)
    if made is not None and np.abs(off).max(initial=0.0) <= LITTLE * np.abs(made).max(initial=0.0):
        yield from (fault(PLACES[id], change) for change in COMMON for id in ROUNDED)
    yield from of_softmax(evidence)


def far(asker: Asker) -> float:
    """A score whose exponential overflows where the subject computes its softmax."""
    return 900.0 if asker.unit <= UNIT_ROUNDOFF["float64"] else 120.0


def _of_size(config: AttentionConfig, size: float, seed: int) -> Problem:
    """A problem of 4 queries whose largest scores are about 0.1, 3, size / 8 and size."""
    how: dict[str, Any] = {"seed": seed, "query_len": 4, "key_len": 7, "weights": NO_BIASES}
    problem = generic(config, **how)
    scores = np.asarray(reference.run(problem.config, problem.weights, problem.inputs).scores)
    largest = np.abs(scores).max(axis=(1, 3))[:, :, None]  # (B, Lq, 1)
    wanted = np.array([0.1, 3.0, size / 8.0, size])[None, :, None]
    return generic(config, queries=problem.inputs.queries * wanted / largest, **how)


SCORE = r"\log a_{ij} - \log a_{ik} = c\, q_i^\top (k_j - k_k)"

PROBES = (
    Probe(
        "score-size",
        "One query; all channels and heads of queries and keys alike, so only the size of scores can show.",
        r"\log a_{j} - \log a_{k} = c\, d\, \bar q\, (\bar k_j - \bar k_k)",
        _alike(queries=True, keys=True),
        up_to_scores,
    ),
    Probe(
        "queries",
        "All channels and heads of the keys alike, so only the queries can show: their heads and inputs.",
        r"\log a_{ij} - \log a_{ik} = c\, (\sum_c q_{ic}) (\bar k_j - \bar k_k)",
        _alike(keys=True),
        up_to_scores,
    ),
    Probe(
        "keys",
        "All channels and heads of the queries alike, so only the keys can show.",
        r"\log a_{ij} - \log a_{ik} = c\, \bar q_i \sum_c (k_{jc} - k_{kc})",
        _alike(queries=True),
        up_to_scores,
    ),
    Probe(
        "scores",
        "Queries and keys without biases or mask: the bilinear form of the scores.",
        SCORE,
        lambda asker: asker.nearest([_plain(*call) for call in _calls(asker)]),
        up_to_scores,
        unknown="Scores: the subject took no call without a mask.",
    ),
    Probe(
        "scores-square",
        "As many queries as keys, so what exchanges them can show.",
        SCORE,
        lambda asker: [_plain(config, key_len, key_len) for config, _, key_len in _calls(asker)],
        up_to_scores,
    ),
    Probe(
        "scores-longer",
        "More queries and keys: what is wrong at some positions only, or in longer calls, shows.",
        SCORE,
        longer,
        up_to_scores,
    ),
    Probe(
        "softmax",
        "More keys, without biases or mask: sums, other functions, temperatures, weights that are left out or rounded.",
        r"a_{ij} = f(s_{i1}, \ldots, s_{in})_j \text{ with } f = \mathrm{softmax}?",
        lambda asker: [_row(config) for config in asker.configs],
        _rounded_or_other,
        everywhere="first",
    ),
    Probe(
        "softmax-of-many-heads",
        "12 heads, without biases or mask: what each head has of its own shows in heads that no other layer has.",
        r"a_{hij} = f_h(s_{hi1}, \ldots, s_{hin})_j \text{ with } f_h = \mathrm{softmax}?",
        lambda asker: [] if asker.fixed_weights is not None else [_row(MANY_HEADS)],
        _of_each_head,
        everywhere="last",
    ),
    Probe(
        "softmax-moderate",
        "Rows of scores up to 0.1, 3, 4 and 30: bounds of scores, small weights that are left out.",
        r"\log a_{ij} - \log a_{ik} = s_{ij} - s_{ik} \text{ down to } a \approx e^{-60}",
        lambda asker: [_of_size(config, 30.0, 8) for config in asker.configs],
        of_softmax,
    ),
    Probe(
        "softmax-large",
        "Scores beyond where exp overflows, in some rows: which maximum is subtracted.",
        r"e^{s_{ij} - m_i} \le 1 \text{ if } m_i = \max_k s_{ik}",
        lambda asker: [_of_size(config, far(asker), 9) for config in asker.configs],
        of_softmax,
    ),
)
