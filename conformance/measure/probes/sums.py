r"""The weighted sum: equal scores, where queries are 0 and weights uniform, and queries that choose one key each.

equal scores    o_bi = W_o R W_v (1 / Lk) sum_j x_j
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import EQUAL_SCORES, NO_BIASES, changed, each_key_chosen, generic, in_turn
from conformance.measure.evidence import Evidence
from conformance.measure.probe import Probe, Problems
from conformance.measure.probes.scores import LONGER
from conformance.measure.propose.equal_shapes import biases_where_equal
from conformance.measure.propose.equivalent_calls import AMONG_ITEMS, asked_in
from conformance.measure.propose.scores import up_to_scores
from conformance.measure.propose.steps import Candidate, at_places, of_places, reordered
from mha_core import AttentionConfig

KEY_LENGTHS = (5, 4)

WITHOUT_BIASES = {**NO_BIASES, **EQUAL_SCORES}


def _equal_scores(
    weights: Mapping[str, float],
    values: Callable[[AttentionConfig, int], NDArray | float] = lambda config, keys: 1.0,
) -> Problems:
    @lru_cache(maxsize=64)
    def problem(config: AttentionConfig, keys: int) -> Problem:
        return generic(config, key_len=keys, weights=weights, values=values(config, keys))

    return lambda asker: asker.nearest([problem(config, keys) for keys in KEY_LENGTHS for config in asker.configs])


@lru_cache(maxsize=64)
def _long(config: AttentionConfig, lengths: tuple[int, int]) -> Problem:
    return generic(config, query_len=lengths[0], key_len=lengths[1], weights=WITHOUT_BIASES)


def _same_value(config: AttentionConfig, keys: int) -> NDArray:
    """The same value at every key."""
    one = np.random.default_rng(config.value_dim).normal(size=config.value_dim)
    return np.tile(one, (1, keys, 1))


_equal = _equal_scores(WITHOUT_BIASES)

CHOICES = (0.0, -1.0, 0.5, 1.0, -0.5)
"""How the keys score: by a query of 1 the fourth has all the weight, by one of -1 the second."""

HIGHEST_SCORE = 600.0
"""Of the chosen key: so far above the others that their weights are 0 also if the scale is a tenth of what is right."""


def _chosen_keys(asker: Asker) -> Sequence[Problem]:
    return asker.nearest([_chosen(config) for config in asker.configs])


@lru_cache(maxsize=64)
def _chosen(config: AttentionConfig) -> Problem:
    """Queries that choose one key each, or all; equal channels throughout, so that no order but the keys' counts."""
    root = float(np.sqrt(HIGHEST_SCORE / (config.head_dim * config.softmax_scale)))
    queries = root * np.tile(np.array([1.0, 0.0, -1.0])[None, :, None], (1, 1, config.query_dim))
    keys = root * np.tile(np.array(CHOICES)[None, :, None], (1, 1, config.key_dim))
    weights: dict[str, NDArray | float] = {
        **NO_BIASES,
        "q_proj.weight": np.full((config.num_heads * config.head_dim, config.query_dim), 1.0 / config.query_dim),
        "k_proj.weight": np.full((config.num_kv_heads * config.head_dim, config.key_dim), 1.0 / config.key_dim),
    }
    return generic(config, key_len=len(CHOICES), weights=weights, queries=queries, keys=keys)


LENGTHS_BY_KEY = (7, 6, 9, 5)
"""How many keys there are where each is chosen by a query."""

BLIND = ("queries", "weights", "new_keys", "projected_values", "output")
"""Places whose order of queries or keys can't be told from that of values, kept weights or the output."""

_of_sums = of_places("kept_weights", "output", "heads", "merged")


def _of_weighted_sums(evidence: Evidence) -> Iterator[Candidate]:
    """What differs in the weighted sum, and in the values that each key gives."""
    yield from _of_sums(evidence)
    if evidence.explained:
        return
    by_key = [
        each_key_chosen(config, LENGTHS_BY_KEY[place % len(LENGTHS_BY_KEY)])
        for place, config in enumerate(evidence.asker.configs)
        if config.projections and min(config.head_dim, config.query_dim, config.key_dim) >= 2
    ]
    yield from at_places(evidence, by_key, ("projected_values", "values", "values read"))


def _of_equal_scores(evidence: Evidence) -> Iterator[Candidate]:
    if _are_unequal(evidence):
        yield from up_to_scores(evidence)
    yield from _of_weighted_sums(evidence)


def _are_unequal(evidence: Evidence) -> bool:
    """Whether the scores are not equal after all: what keys of 0 give is another output."""
    for problem in islice(evidence.differing(), 1):
        given, without_keys = evidence.got(problem), evidence.got(changed(problem, keys=0.0))
        if given is not None and without_keys is not None:
            allowed = 1e5 * evidence.asker.unit * np.abs(given[np.isfinite(given)]).max(initial=0.0)
            return not np.allclose(given, without_keys, rtol=0.0, atol=allowed, equal_nan=True)
    return False


def _of_biases(evidence: Evidence) -> Iterator[Candidate]:
    """Also a bias that stands where there should be none: of queries that are 0."""
    yield from biases_where_equal()
    yield from at_places(evidence, evidence.problems, ("out_proj.bias", "v_proj.bias"))
    yield from _of_weighted_sums(evidence)


def _of_chosen_keys(evidence: Evidence) -> Iterator[Candidate]:
    """What differs in the weighted sum; and scores that are wrong, read off calls in which they can show."""
    yield from up_to_scores(evidence)
    yield from _of_weighted_sums(evidence)
    yield from reordered(("similarity", *BLIND), ("query", "key"))


# Several items ------------------------------------------------------------------------------------------------

BATCHES = ((2, 2, 3), (3, 2, 3), (4, 2, 3), (5, 2, 3))

PROBES = (
    Probe(
        "same-value",
        "Equal scores and the same value at every key: only what the weights sum to, or a position, can show.",
        r"o_{bi} = W_o R W_v x \sum_j a_{ij}",
        _equal_scores(WITHOUT_BIASES, _same_value),
        _of_equal_scores,
    ),
    Probe(
        "equal-scores",
        "Equal scores, no biases: every key has the weight 1 / Lk, so only the sum over the keys can show.",
        r"o_{bi} = \frac{1}{L_k} W_o R W_v \sum_j x_{bj}",
        _equal,
        _of_equal_scores,
    ),
    Probe(
        "equal-scores-longer",
        "Equal scores of more queries and keys: what is wrong at some positions, or in longer calls, shows.",
        r"o_{bi} = \frac{1}{L_k} W_o R W_v \sum_j x_{bj}",
        lambda asker: asker.nearest(list(map(_long, asker.configs, LONGER))),
        _of_weighted_sums,
    ),
    Probe(
        "equal-scores-with-biases",
        "Equal scores, with the biases of values and output.",
        r"o_{bi} = W_o R (W_v \bar{x}_b + b_v) + b_o",
        _equal_scores(EQUAL_SCORES),
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
    Probe(
        "items-of-equal-scores",
        "Batches of 2 to 5 items with equal scores and no mask: values, heads and outputs that are another item's.",
        r"o_{bi} = \sum_{b'} M_{bb'} W_o R \frac{1}{L_k} \sum_j (W_v x_{b'j} + b_v) + b_o, \quad M = I",
        lambda asker: in_turn(asker.configs, BATCHES, weights=EQUAL_SCORES),
        of_places("output", "merged", "heads", "values", "v_proj", "value_inputs"),
        unknown="what items of a batch do to each other",
    ),
    Probe(
        "among-items-of-equal-scores",
        "One call as each item of batches of 2 to 4, with equal scores: as if alone.",
        r"o_b(x_1, \ldots, x_B) = o(x_b)",
        lambda asker: asked_in(AMONG_ITEMS, [generic(c, weights=EQUAL_SCORES) for c in asker.configs[:3]]),
        of_places("output", "heads", "values"),
    ),
)
