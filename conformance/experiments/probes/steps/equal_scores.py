r"""Equal scores: queries are 0, so weights are uniform, and only the weighted sum and the mapping of heads can show.

output[b, i] = W_o R W_v (1 / Lk) sum_j x_j
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.candidates.equal_shapes import biases_where_equal
from conformance.experiments.candidates.fitted import (
    any_fitted,
    fitted_by_key,
    whole_first,
)
from conformance.experiments.candidates.scores.places import SIMILARITY, reordered
from conformance.experiments.candidates.scores.shown import Candidate, up_to_scores
from conformance.experiments.candidates.steps import BESIDE, positions_on
from conformance.experiments.designs import EQUAL_SCORES, NO_BIASES, changed, generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig

KEY_LENGTHS = (5, 4)


def _problems(
    weights: Mapping[str, float],
    values: Callable[[AttentionConfig, int], NDArray | float] = lambda config, keys: 1.0,
) -> Callable[[Lab], Sequence[Problem]]:
    @lru_cache(maxsize=64)
    def problem(config: AttentionConfig, keys: int) -> Problem:
        return generic(config, key_len=keys, weights=weights, values=values(config, keys))

    return lambda lab: lab.nearest([problem(config, keys) for keys in KEY_LENGTHS for config in lab.configs])


LONGER = ((6, 11), (11, 6), (5, 22), (22, 5))
"""Queries and keys of the layers' longer calls."""


@lru_cache(maxsize=64)
def _long(config: AttentionConfig, query_len: int, key_len: int) -> Problem:
    return generic(config, query_len=query_len, key_len=key_len, weights=_WITHOUT_BIASES)


def _longer(lab: Lab) -> Sequence[Problem]:
    return lab.nearest([_long(config, *LONGER[place % len(LONGER)]) for place, config in enumerate(lab.configs)])


def _same_value(config: AttentionConfig, keys: int) -> NDArray:
    """The same value at every key."""
    one = np.random.default_rng(config.value_dim).normal(size=config.value_dim)
    return np.tile(one, (1, keys, 1))


def _anything(view: View) -> Iterator[Bug]:
    """What differs in the output, in the heads, or in the weights that meet the values."""
    yield from positions_on(BESIDE)
    yield from any_fitted(view, ("kept_weights", "output", "heads", "merged"))
    if not view.explained:
        yield from fitted_by_key(view)


def _of_chosen_keys(view: View) -> Iterator[Candidate]:
    """What differs in the weighted sum; and scores that are wrong, read off calls in which they can show."""
    yield from up_to_scores(view)
    yield from _anything(view)
    yield from reordered((ORDER_OF_SCORES,))


ORDER_OF_SCORES = replace(SIMILARITY, own=("query", "key"))
"""Whose order of positions can't be told from that of values or output."""


def _of_biases(view: View) -> Iterator[Bug]:
    """Also a bias that stands where there should be none: of queries that are 0."""
    yield from biases_where_equal()
    yield from _anything(view)


def _isolated(view: View) -> Iterator[Candidate]:
    if _are_unequal(view):
        yield from up_to_scores(view)
    yield from whole_first(view, (*_whole(view.lab), *_chosen_keys(view.lab)), _anything, _anything)


def _are_unequal(view: View) -> bool:
    """Whether the scores are not equal after all: what keys of 0 give is another output."""
    for problem in islice(view.differing(), 1):
        given, without_keys = view.got(problem), view.got(changed(problem, keys=0.0))
        if given is not None and without_keys is not None:
            largest = np.abs(given[np.isfinite(given)]).max(initial=0.0)
            return not np.allclose(given, without_keys, rtol=0.0, atol=1e5 * view.lab.unit * largest, equal_nan=True)
    return False


CHOICES = (0.0, -1.0, 0.5, 1.0, -0.5)
"""How the keys score: by a query of 1 the fourth has all the weight, by one of -1 the second."""

HIGHEST_SCORE = 600.0
"""Of the chosen key: so far above the others that their weights are 0 also if the scale is a tenth of what is right."""


def _chosen_keys(lab: Lab) -> Sequence[Problem]:
    """Queries that choose one key each, or all; equal channels throughout, so that no order but the keys' counts."""
    return lab.nearest([_chosen(config) for config in lab.configs])


@lru_cache(maxsize=64)
def _chosen(config: AttentionConfig) -> Problem:
    root = float(np.sqrt(HIGHEST_SCORE / (config.head_dim * config.softmax_scale)))
    queries = root * np.tile(np.array([1.0, 0.0, -1.0])[None, :, None], (1, 1, config.query_dim))
    keys = root * np.tile(np.array(CHOICES)[None, :, None], (1, 1, config.key_dim))
    weights: dict[str, NDArray | float] = {
        **NO_BIASES,
        "q_proj.weight": np.full((config.num_heads * config.head_dim, config.query_dim), 1.0 / config.query_dim),
        "k_proj.weight": np.full((config.num_kv_heads * config.head_dim, config.key_dim), 1.0 / config.key_dim),
    }
    return generic(config, key_len=len(CHOICES), weights=weights, queries=queries, keys=keys)


_WITHOUT_BIASES = {**NO_BIASES, **EQUAL_SCORES}
_whole = _problems(_WITHOUT_BIASES)

PROBES = (
    Probe(
        "same-value",
        "Equal scores and the same value at every key: only what the weights sum to, or a position, can show.",
        r"o_{bi} = W_o R W_v x \sum_j a_{ij}",
        _problems(_WITHOUT_BIASES, _same_value),
        _isolated,
    ),
    Probe(
        "equal-scores",
        "Equal scores, no biases: every key has the weight 1 / Lk, so only the sum over the keys can show.",
        r"o_{bi} = \frac{1}{L_k} W_o R W_v \sum_j x_{bj}",
        _whole,
        _isolated,
    ),
    Probe(
        "equal-scores-longer",
        "Equal scores of more queries and keys: what is wrong at some positions, or in longer calls, shows.",
        r"o_{bi} = \frac{1}{L_k} W_o R W_v \sum_j x_{bj}",
        _longer,
        _anything,
    ),
    Probe(
        "equal-scores-with-biases",
        "Equal scores, with the biases of values and output.",
        r"o_{bi} = W_o R (W_v \bar{x}_b + b_v) + b_o",
        _problems(EQUAL_SCORES),
        _of_biases,
        unknown="what the sum over the keys does by itself: every call with equal scores was refused",
    ),
    Probe(
        "chosen-keys",
        "Queries that give all weight to one key each: only which position is read can show.",
        r"o_{bi} = W_o R W_v x_{b j(i)}",
        _chosen_keys,
        _of_chosen_keys,
    ),
)
