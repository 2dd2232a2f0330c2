r"""Scores that a subject computes, beside those of a model of it; and the queries and keys that they are made of.

Ratios of weights are differences of scores. So, with W_k that passes channels through and keys that are the unit
vectors and one key of 0, a query's channels are read off, and with unit vectors as queries the keys':

    log a_ic - log a_i0 = scale * q_ic

Both arrays are read in the same way from the subject and from the model, so what the model knows to be wrong after
the scores is in both.
"""

from __future__ import annotations

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


def scale_of(config: AttentionConfig) -> float:
    """What scores of a dot product are multiplied by; never 0, so that it can be divided by."""
    return config.softmax_scale or 1.0


QUERIES, KEYS = 0, 1
"""The two sides of a score."""

_INPUT, _PROJECTION = ("queries", "keys"), ("q_proj", "k_proj")


def _sizes(config: AttentionConfig, side: int) -> tuple[int, int]:
    """The number of heads of a side, and the channels of its input."""
    return ((config.num_heads, config.query_dim), (config.num_kv_heads, config.key_dim))[side]


@lru_cache(maxsize=256)
def shown(config: AttentionConfig, side: int, length: int, seed: int = 0) -> Problem:
    """So many random queries against the keys 0, e_0, e_1, ...; or keys, the first of them 0, against such queries.

    `read_side` is then the side's heads, for W_k, or W_q, passes channels through.
    """
    heads, channels = _sizes(config, 1 - side)
    width = min(config.head_dim, channels)
    codes = np.eye(width + 1, channels, -1)[None]
    query_len, key_len = (width + 1, length) if side else (length, width + 1)
    passing = np.tile(selector(config.head_dim, channels), (heads, 1))
    weights: dict[str, NDArray | float] = {**NO_BIASES, f"{_PROJECTION[1 - side]}.weight": passing}
    problem = generic(config, seed=seed, query_len=query_len, key_len=key_len, weights=weights)
    if side:
        return changed(problem, queries=codes, keys=_first_is_zero(problem.inputs.keys))
    return changed(problem, keys=codes)


def _first_is_zero(rows: NDArray) -> NDArray:
    return np.concatenate([np.zeros_like(rows[:, :1]), rows[:, 1:]], axis=1)


def read_side(answer: Answer, problem: Problem, side: int) -> NDArray | None:
    """(1, H, L, channels): the queries of a problem of `shown`, or the keys as each query head reads them.

    They are right if the other side and all that follows is.

    >>> from conformance.experiments.designs import CONFIGS
    >>> from mha_core import reference
    >>> run = lambda one: reference.run(one.config, one.weights, one.inputs)
    >>> problem = shown(CONFIGS[0], QUERIES, 3)
    >>> bool(np.allclose(read_side(lambda one: run(one).output, problem, QUERIES), run(problem).queries))
    True
    """
    read = read_against_zero(answer, problem, 0)
    if read is None:
        return None
    return (read.swapaxes(-1, -2) if side else read)[..., 1:] / scale_of(problem.config)


def as_units(config: AttentionConfig, side: int) -> Problem:
    """A problem of `shown` whose own input is 0, e_0, e_1, ...: `read_weight` reads the weight of the side off it."""
    channels = _sizes(config, side)[1]
    units = np.eye(channels + 1, channels, -1)[None]
    problem = shown(config, side, channels + 1)
    return changed(problem, keys=units) if side else changed(problem, queries=units)


def read_weight(answer: Answer, problem: Problem, side: int) -> NDArray | None:
    """(H * d, Dq) or (G * d, Dk): the weight of a side as it takes effect, of keys as the first head of each group
    reads it; None if it can't be told.

    >>> from conformance.experiments.designs import CONFIGS
    >>> from mha_core import reference
    >>> problem = as_units(CONFIGS[0], QUERIES)
    >>> read = read_weight(lambda one: reference.run(one.config, one.weights, one.inputs).output, problem, QUERIES)
    >>> bool(np.allclose(read, problem.weights["q_proj.weight"]))
    True
    """
    config = problem.config
    heads, channels = _sizes(config, side)
    read = read_side(answer, problem, side) if _are_readable(answer, config, side) else None
    if read is None:
        return None
    found: NDArray = read[0, :: config.num_heads // heads, 1:].swapaxes(1, 2).reshape(-1, channels)
    return found


def read_input(answer: Answer, problem: Problem, side: int) -> NDArray | None:
    """(1, L, Dq or Dk): the input of a side of a problem of `shown` as it takes effect; None if it can't be told."""
    config = problem.config
    if not _are_readable(answer, config, side):
        return None
    found = []
    for passing in _passing_input(problem, side):
        read = read_side(answer, passing, side)
        if read is None:
            return None
        found.append(read[:, 0])
    return np.concatenate(found, axis=-1)[..., : _sizes(config, side)[1]]


@lru_cache(maxsize=512)
def _passing_input(problem: Problem, side: int) -> tuple[Problem, ...]:
    config = problem.config
    heads, channels = _sizes(config, side)
    name = f"{_PROJECTION[side]}.weight"
    return tuple(
        changed(problem, {name: np.tile(selector(config.head_dim, channels, first), (heads, 1))})
        for first in range(0, channels, config.head_dim)
    )


def of_bias(config: AttentionConfig) -> Problem:
    """A problem of `shown` whose query is the bias of q_proj, for a layer that has one."""
    problem = shown(config, QUERIES, 1)
    return changed(problem, {"q_proj.bias": generic(config).weights["q_proj.bias"]}, queries=0.0)


def read_query_bias(answer: Answer, problem: Problem) -> NDArray | None:
    """(H * d,): q_proj.bias of a problem of `of_bias` as it takes effect, if keys and scores are right; or None."""
    read = read_side(answer, problem, QUERIES) if _are_readable(answer, problem.config, QUERIES) else None
    return None if read is None else read[0, :, 0].ravel()


def _are_readable(answer: Answer, config: AttentionConfig, side: int) -> bool:
    """Whether a layer has weights, takes others, its scores are products, and codes of its other side fit into it."""
    other = _sizes(config, 1 - side)[1]
    return takes_weights(answer, config) and config.score != "additive" and other >= config.head_dim


def centred(scores: NDArray) -> NDArray:
    """Scores less their mean over the keys, which is what weights can tell of them."""
    with any_numbers:  # infinite scores have no mean
        found: NDArray = scores - scores.mean(axis=-1, keepdims=True)
    return found
