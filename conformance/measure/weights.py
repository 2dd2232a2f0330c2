"""Weights and scores of every head, item and query, read off the output.

The output is linear in the values. With W_v and W_o that pass channels through, and keys whose values are unit
vectors, output channel (h, c) of query i *is* the weight of head h on key j0 + c:

    output[b, i, (h, c)] = sum_j weights[b, h, i, j] values[b, j, c] = weights[b, h, i, j0 + c]

A few calls tell all heads and keys if the output is too narrow for all of them. Scores follow up to a number per row:
log weights[j] - log weights[k] = scores[j] - scores[k].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.designs import changed

Answer = Callable[[Problem], "NDArray | None"]
"""Problem -> the output, of a subject or of a model of it; None if there is none."""


def read_weights(answer: Answer, problem: Problem) -> NDArray | None:
    """Return (B, H, Lq, Lk): the weights (after dropout, if there is a keep-mask); None if an answer was refused.

    >>> from conformance.measure.designs import CONFIGS, generic
    >>> from mha_core import reference
    >>> problem = generic(CONFIGS[0])
    >>> trace = lambda one: reference.run(one.config, one.weights, one.inputs)
    >>> bool(np.allclose(read_weights(lambda one: trace(one).output, problem), trace(problem).weights))
    True
    """
    config, sizes = problem.config, problem.sizes
    found = np.zeros((sizes.batch, config.num_heads, sizes.query_len, sizes.key_len))
    width = config.value_head_dim
    if config.projections:
        width = min(width, config.value_dim, config.output_dim)
    together = max(1, config.output_dim // width) if config.projections else config.num_heads
    for head, key in product(range(0, config.num_heads, together), range(0, sizes.key_len, width)):
        heads = range(head, min(head + together, config.num_heads))
        keys = range(key, min(key + width, sizes.key_len))
        passing = _passing(problem, heads, keys, width)
        output = answer(passing)
        if output is None:
            return None
        stride = width if config.projections else config.value_head_dim
        for place, one in enumerate(heads):
            start = place * stride
            found[:, one, :, keys.start : keys.stop] = output[:, :, start : start + len(keys)]
    return found


@lru_cache(maxsize=2048)
def _passing(problem: Problem, heads: range, keys: range, width: int) -> Problem:
    """Return the problem with values and W_v, W_o that show the weights of these heads on these keys."""
    config, sizes = problem.config, problem.sizes
    dv = config.value_head_dim
    weights: dict[str, NDArray | float] = {}
    codes = np.zeros((sizes.key_len, width))
    codes[np.arange(keys.start, keys.stop), np.arange(len(keys))] = 1.0
    if config.projections:
        v_proj = np.zeros((config.num_kv_heads * dv, config.value_dim))
        for group in range(config.num_kv_heads):
            v_proj[group * dv + np.arange(width), np.arange(width)] = 1.0
        out_proj = np.zeros((config.output_dim, config.num_heads * dv))
        for place, head in enumerate(heads):
            out_proj[place * width + np.arange(width), head * dv + np.arange(width)] = 1.0
        weights = {"v_proj.weight": v_proj, "out_proj.weight": out_proj, "v_proj.bias": 0.0, "out_proj.bias": 0.0}
        values = np.zeros((sizes.batch, sizes.key_len, config.value_dim))
        values[:, :, :width] = codes
    else:
        values = np.zeros((sizes.batch, sizes.key_len, config.num_kv_heads, dv))
        values[..., :width] = codes[:, None, :]
        values = values.reshape(sizes.batch, sizes.key_len, -1)
    new = values[:, sizes.past_len :]
    inputs = {"values": new}
    if problem.inputs.is_split:
        split = new.reshape(sizes.batch, -1, config.num_kv_heads, dv).swapaxes(1, 2)
        inputs["values"] = split
    if sizes.past_len:
        past = np.zeros((sizes.batch, config.num_kv_heads, sizes.past_len, dv))
        past[..., :width] = codes[None, None, : sizes.past_len]
        inputs["past_values"] = past
    return changed(problem, weights, **inputs)
