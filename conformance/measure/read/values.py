"""The merged heads, read off the output: with W_o that passes channels through, output channel c *is* merged channel c.

    output[b, i, c] = sum_k W_o[c, k] merged[b, i, k] = merged[b, i, c0 + c]     W_o[c, c0 + c] = 1, else 0

As many calls as it takes for all channels. With one key the merged heads are the values that each head reads.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.designs import NO_BIASES, changed, generic, selector
from conformance.measure.read.linear import least_squares
from conformance.measure.read.weights import Answer
from mha_core import AttentionConfig
from mha_core.weights import Weights


def read_merged(answer: Answer, problem: Problem) -> NDArray | None:
    """(B, Lq, H * dv): the merged heads; None if an answer was refused, or in a layer without projections.

    >>> from conformance.measure.designs import CONFIGS, generic
    >>> from mha_core import reference
    >>> problem = generic(CONFIGS[0])
    >>> trace = lambda one: reference.run(one.config, one.weights, one.inputs)
    >>> heads = trace(problem).heads
    >>> merged = read_merged(lambda one: trace(one).output, problem)
    >>> bool(np.allclose(merged, heads.swapaxes(1, 2).reshape(merged.shape)))
    True
    """
    config = problem.config
    if not config.projections:
        return None
    width = config.num_heads * config.value_head_dim
    fixed = getattr(answer, "fixed", None)
    if fixed is not None:
        return _solved(answer(problem), fixed) if config.output_dim >= width else None
    found = []
    for first, passing in _passing(problem):
        output = answer(passing)
        if output is None:
            return None
        found.append(output[..., : width - first])
    return np.concatenate(found, axis=-1)


@lru_cache(maxsize=2048)
def _passing(problem: Problem) -> tuple[tuple[int, Problem], ...]:
    """(the first channel that is passed, the problem that passes it and those after it): each problem once."""
    config = problem.config
    width = config.num_heads * config.value_head_dim
    return tuple(
        (first, changed(problem, {"out_proj.weight": selector(config.output_dim, width, first), "out_proj.bias": 0.0}))
        for first in range(0, width, config.output_dim)
    )


HIGHEST_SCORE = 600.0
"""Of a chosen key, against 0 for one at a right angle to it: others get no weight, also if scores are a tenth."""


@lru_cache(maxsize=64)
def each_key_chosen(config: AttentionConfig, length: int) -> Problem:
    """As many queries as keys, each with the direction of its key in a plane: query i has all its weight on key i."""
    angles = 2.0 * np.pi * np.arange(length) / length
    root = float(np.sqrt(HIGHEST_SCORE / (config.softmax_scale * (1.0 - np.cos(angles[1])))))
    places = root * np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def passing(heads: int, width: int) -> NDArray:
        return np.tile(selector(config.head_dim, width), (heads, 1))

    def rows(width: int) -> NDArray:
        found = np.zeros((1, length, width))
        found[0, :, :2] = places
        return found

    weights: dict[str, NDArray | float] = {
        **NO_BIASES,
        "q_proj.weight": passing(config.num_heads, config.query_dim),
        "k_proj.weight": passing(config.num_kv_heads, config.key_dim),
    }
    queries, keys = rows(config.query_dim), rows(config.key_dim)
    return generic(config, query_len=length, key_len=length, weights=weights, queries=queries, keys=keys)


def _solved(output: NDArray | None, weights: Weights) -> NDArray | None:
    """The merged heads of a layer whose parameters are given: what its W_o makes the output of, by least squares."""
    if output is None:
        return None
    matrix = weights["out_proj.weight"]
    surplus = (output - weights.get("out_proj.bias", 0.0)).reshape(-1, len(matrix))
    solved = least_squares(matrix, surplus.T)[0].T
    return solved.reshape(*output.shape[:-1], -1)
