"""The merged heads, read off the output: with W_o that passes channels through, output channel c *is* merged channel c.

    output[b, i, c] = sum_k W_o[c, k] merged[b, i, k] = merged[b, i, c0 + c]     W_o[c, c0 + c] = 1, else 0

As many calls as it takes for all channels. With one key the merged heads are the values that each head reads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.designs import changed, selector
from conformance.experiments.readings.weights import Answer
from mha_core.weights import Weights


def read_merged(answer: Answer, problem: Problem) -> NDArray | None:
    """(B, Lq, H * dv): the merged heads; None if an answer was refused, or in a layer without projections.

    >>> from conformance.experiments.designs import CONFIGS, generic
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
    for first in range(0, width, config.output_dim):
        passing = selector(config.output_dim, width, first)
        output = answer(changed(problem, {"out_proj.weight": passing, "out_proj.bias": 0.0}))
        if output is None:
            return None
        found.append(output[..., : width - first])
    return np.concatenate(found, axis=-1)


def _solved(output: NDArray | None, weights: Weights) -> NDArray | None:
    """The merged heads of a layer whose parameters are given: what its W_o makes the output of, by least squares."""
    if output is None:
        return None
    matrix = weights["out_proj.weight"]
    surplus = (output - weights.get("out_proj.bias", 0.0)).reshape(-1, len(matrix))
    solved = np.linalg.lstsq(matrix, surplus.T, rcond=None)[0].T
    return solved.reshape(*output.shape[:-1], -1)
