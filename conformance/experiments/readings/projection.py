"""The weights of the value and the output projection as they take effect, entry by entry.

One key alone has the weight 1, so a value input that is a unit vector shows a column of W_v, repeated for the query
heads that read it; and W_v that passes one channel of one value head shows a column of W_o, or the sum of the columns
of the query heads that read that head:

    W_o = [1 at (c, c0 + c)]:  output[c] = merged[c0 + c] = (R W_v)[c0 + c, k]    for values = e_k
    W_v = [1 at (k, 0)]:       output[c] = sum over heads h of group k // dv of W_o[c, h dv + k % dv]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.designs import changed
from conformance.experiments.readings.values import read_merged
from conformance.experiments.readings.weights import Answer


def read_value_weight(answer: Answer, problem: Problem) -> NDArray | None:
    """(H * dv, Dv): the rows of v_proj.weight that reach each merged channel, from a problem with one key.

    None if an answer was refused, or the layer takes no other weights.
    """
    config, sizes = problem.config, problem.sizes
    if not config.projections or getattr(answer, "fixed", None) is not None:
        return None
    columns = []
    for channel in range(config.value_dim):
        values = np.zeros((sizes.batch, 1, config.value_dim))
        values[..., channel] = 1.0
        column = read_merged(answer, changed(problem, {"v_proj.bias": 0.0}, values=values))
        if column is None:
            return None
        columns.append(column[0, 0])
    return np.stack(columns, axis=-1)


def read_output_weight(answer: Answer, problem: Problem) -> NDArray | None:
    """(Do, G * dv): out_proj.weight, its columns summed over the heads of each group, from a problem with one key.

    None if an answer was refused, or the layer takes no other weights.
    """
    config, sizes = problem.config, problem.sizes
    if not config.projections or getattr(answer, "fixed", None) is not None:
        return None
    columns = []
    values = np.ones((sizes.batch, 1, config.value_dim))
    for channel in range(config.num_kv_heads * config.value_head_dim):
        passing = np.zeros((config.num_kv_heads * config.value_head_dim, config.value_dim))
        passing[channel, 0] = 1.0
        zero_biases = {"v_proj.bias": 0.0, "out_proj.bias": 0.0}
        column = answer(changed(problem, {"v_proj.weight": passing, **zero_biases}, values=values))
        if column is None:
            return None
        columns.append(column[0, 0])
    return np.stack(columns, axis=-1)
