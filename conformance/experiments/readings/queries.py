r"""Scores that a subject computes, beside those of a model of it; and the queries and keys that they are made of.

Ratios of weights are differences of scores. So, with W_k that passes channels through and keys that are the unit
vectors and one key of 0, a query's channels are read off, and with unit vectors as queries the keys':

    log a_ic - log a_i0 = scale * q_ic

Both arrays are read in the same way from the subject and from the model, so what the model knows to be wrong after
the scores is in both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.designs import NO_BIASES, changed, generic, selector
from conformance.experiments.readings.weights import Answer, read_weights, takes_weights
from mha_core import AttentionConfig


def read_against_zero(answer: Answer, problem: Problem, zero: int) -> NDArray | None:
    """(B, H, Lq, Lk): log weights less that of key `zero`, whose score is 0; NaN where a weight is not positive."""
    weights = read_weights(answer, problem)
    if weights is None:
        return None
    with any_numbers:
        logs = np.where(weights > 0.0, np.log(np.where(weights > 0.0, weights, 1.0)), np.nan)
    found: NDArray = logs - logs[..., zero : zero + 1]
    return found


@lru_cache(maxsize=64)
def queries_shown(config: AttentionConfig, query_len: int = 3, seed: int = 0) -> Problem:
    """Random queries against the keys 0, e_0, e_1, ...: `read_against_zero(..., 0)[..., 1:]` are the scaled queries."""
    width = min(config.head_dim, config.key_dim)
    passing = np.tile(selector(config.head_dim, config.key_dim), (config.num_kv_heads, 1))
    keys = np.zeros((1, width + 1, config.key_dim))
    keys[0, 1:, :width] = np.eye(width)
    return generic(
        config,
        seed=seed,
        query_len=query_len,
        key_len=width + 1,
        weights={**NO_BIASES, "k_proj.weight": passing},
        keys=keys,
    )


@lru_cache(maxsize=64)
def keys_shown(config: AttentionConfig, key_len: int = 5, seed: int = 0) -> Problem:
    """The queries e_0, e_1, ... against random keys, of which key 0 is 0: `read_against_zero(..., 0)` are the keys."""
    width = min(config.head_dim, config.query_dim)
    passing = np.tile(selector(config.head_dim, config.query_dim), (config.num_heads, 1))
    queries = np.zeros((1, width, config.query_dim))
    queries[0] = np.eye(width, config.query_dim)
    plain = generic(config, seed=seed, query_len=width, key_len=key_len, weights=NO_BIASES)
    keys = np.array(plain.inputs.keys)
    keys[:, 0] = 0.0
    weights: dict[str, NDArray | float] = {**NO_BIASES, "q_proj.weight": passing}
    return generic(config, seed=seed, query_len=width, key_len=key_len, weights=weights, queries=queries, keys=keys)


def scale_of(config: AttentionConfig) -> float:
    """What scores of a dot product are multiplied by; never 0, so that it can be divided by."""
    return config.softmax_scale or 1.0


def read_queries(answer: Answer, config: AttentionConfig) -> NDArray | None:
    """(1, H, Lq, d): the queries of `queries_shown`, if keys and scores are right.

    >>> from conformance.experiments.designs import CONFIGS
    >>> from mha_core import reference
    >>> run = lambda one: reference.run(one.config, one.weights, one.inputs)
    >>> found = read_queries(lambda one: run(one).output, CONFIGS[0])
    >>> bool(np.allclose(found, run(queries_shown(CONFIGS[0])).queries))
    True
    """
    read = read_against_zero(answer, queries_shown(config), 0)
    return None if read is None else read[..., 1:] / scale_of(config)


def read_keys(answer: Answer, config: AttentionConfig) -> NDArray | None:
    """(1, H, Lk, d): the keys that each query head reads in `keys_shown`, if queries and scores are right."""
    read = read_against_zero(answer, keys_shown(config), 0)
    return None if read is None else read.swapaxes(-1, -2) / scale_of(config)


@lru_cache(maxsize=64)
def _units_as_queries(config: AttentionConfig, bias: bool) -> Problem:
    """`queries_shown` of the unit vectors; with `bias` one query of 0, which shows the bias of the queries."""
    shown = queries_shown(config, query_len=1 if bias else config.query_dim)
    if not bias:
        return changed(shown, queries=np.eye(config.query_dim)[None])
    own = generic(config, weights={}).weights.get("q_proj.bias", 0.0)
    return changed(shown, {"q_proj.bias": np.asarray(own)}, queries=0.0)


@lru_cache(maxsize=64)
def _units_as_keys(config: AttentionConfig) -> Problem:
    """`keys_shown` of 0 and the unit vectors."""
    keys = np.concatenate([np.zeros((1, config.key_dim)), np.eye(config.key_dim)])[None]
    return changed(keys_shown(config, key_len=config.key_dim + 1), keys=keys)


def read_query_weight(answer: Answer, config: AttentionConfig) -> NDArray | None:
    """(H * d, Dq): q_proj.weight as it takes effect, if keys and scores are right; None if it can't be told.

    >>> from conformance.experiments.designs import CONFIGS
    >>> from mha_core import reference
    >>> run = lambda one: reference.run(one.config, one.weights, one.inputs).output
    >>> weight = _units_as_queries(CONFIGS[0], False).weights["q_proj.weight"]
    >>> bool(np.allclose(read_query_weight(run, CONFIGS[0]), weight))
    True
    """
    read = _read_units(answer, config, _units_as_queries, False)
    return None if read is None else read[0].swapaxes(1, 2).reshape(-1, config.query_dim)


def read_query_bias(answer: Answer, config: AttentionConfig) -> NDArray | None:
    """(H * d,): q_proj.bias as it takes effect, if keys and scores are right; None if it can't be told."""
    read = _read_units(answer, config, _units_as_queries, True) if config.bias.q_proj else None
    return None if read is None else read[0, :, 0].ravel()


def _read_units(
    answer: Answer, config: AttentionConfig, shown: Callable[[AttentionConfig, bool], Problem], bias: bool
) -> NDArray | None:
    if not _are_readable(answer, config) or config.key_dim < config.head_dim:
        return None
    read = read_against_zero(answer, shown(config, bias), 0)
    return None if read is None else read[..., 1:] / scale_of(config)


def read_key_weight(answer: Answer, config: AttentionConfig) -> NDArray | None:
    """(G * d, Dk): k_proj.weight as the first query head of each group reads it; None if it can't be told."""
    if not _are_readable(answer, config) or config.query_dim < config.head_dim:
        return None
    read = read_against_zero(answer, _units_as_keys(config), 0)
    if read is None:
        return None
    heads = read[0, :: config.num_heads // config.num_kv_heads, :, 1:] / scale_of(config)
    return heads.reshape(-1, config.key_dim)


def _are_readable(answer: Answer, config: AttentionConfig) -> bool:
    """Whether a layer has weights, takes others, and its scores are products."""
    return takes_weights(answer, config) and config.score != "additive"


def centred(scores: NDArray) -> NDArray:
    """Scores less their mean over the keys, which is what weights can tell of them."""
    with any_numbers:  # infinite scores have no mean
        found: NDArray = scores - scores.mean(axis=-1, keepdims=True)
    return found
