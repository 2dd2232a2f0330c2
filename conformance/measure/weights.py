"""Weights of every head, item and query, read off the output, which is linear in the values.

With W_v and W_o that pass channels through, and keys whose values are unit vectors, output channel (h, c) of query i
*is* the weight of head h on key j0 + c. A few calls tell all heads and keys if the output is too narrow for that:

    output[b, i, (h, c)] = sum_j weights[b, h, i, j] values[b, j, c] = weights[b, h, i, j0 + c]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.designs import changed


def read_weights(answer: Callable[[Problem], NDArray | None], problem: Problem) -> NDArray | None:
    """Return (B, H, Lq, Lk): the weights that meet the values in a layer with projections.

    None if an answer was refused. `answer` gives the output of a problem.

    >>> from conformance.measure.designs import CONFIGS, generic
    >>> from mha_core import reference
    >>> problem = generic(CONFIGS[0])
    >>> trace = lambda one: reference.run(one.config, one.weights, one.inputs)
    >>> bool(np.allclose(read_weights(lambda one: trace(one).output, problem), trace(problem).weights))
    True
    """
    config, sizes = problem.config, problem.sizes
    found = np.zeros((sizes.batch, config.num_heads, sizes.query_len, sizes.key_len))
    width = min(config.value_head_dim, config.value_dim, config.output_dim)
    together = config.output_dim // width
    for head, key in product(range(0, config.num_heads, together), range(0, sizes.key_len, width)):
        heads = range(head, min(head + together, config.num_heads))
        keys = range(key, min(key + width, sizes.key_len))
        output = answer(_passing(problem, heads, keys, width))
        if output is None:
            return None
        for place, one in enumerate(heads):
            found[:, one, :, keys.start : keys.stop] = output[:, :, place * width : place * width + len(keys)]
    return found


@lru_cache(maxsize=2048)
def _passing(problem: Problem, heads: range, keys: range, width: int) -> Problem:
    """Return the problem with values and W_v, W_o that show the weights of these heads on these keys."""
    config, sizes, channels = problem.config, problem.sizes, np.arange(width)
    dv = config.value_head_dim
    codes = np.zeros((sizes.key_len, width))
    codes[np.arange(keys.start, keys.stop), np.arange(len(keys))] = 1.0
    v_proj = np.zeros((config.num_kv_heads * dv, config.value_dim))
    for group in range(config.num_kv_heads):
        v_proj[group * dv + channels, channels] = 1.0
    out_proj = np.zeros((config.output_dim, config.num_heads * dv))
    for place, head in enumerate(heads):
        out_proj[place * width + channels, head * dv + channels] = 1.0
    values = np.zeros((sizes.batch, sizes.key_len, config.value_dim))
    values[:, :, :width] = codes
    inputs = {"values": values[:, sizes.past_len :]}
    if sizes.past_len:
        past = np.zeros((sizes.batch, config.num_kv_heads, sizes.past_len, dv))
        past[..., :width] = codes[None, None, : sizes.past_len]
        inputs["past_values"] = past
    weights: dict[str, NDArray | float] = {
        "v_proj.weight": v_proj,
        "out_proj.weight": out_proj,
        "v_proj.bias": 0.0,
        "out_proj.bias": 0.0,
    }
    return changed(problem, weights, **inputs)
