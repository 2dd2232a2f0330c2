"""The weights of the value and the output projection as they take effect, entry by entry.

One key alone has the weight 1, so a value input that is a unit vector shows a column of W_v, repeated for the query
heads that read it; and W_v that passes one channel of one value head shows a column of W_o, or the sum of the columns
of the query heads that read that head:

    W_o = [1 at (c, c0 + c)]:  output[c] = merged[c0 + c] = (R W_v)[c0 + c, k]      values = e_k
    W_v = [1 at (k, 0)]:       output[c] = sum over heads h of group k // dv of W_o[c, h dv + k % dv]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.designs import changed
from conformance.experiments.readings.values import read_lone_values
from conformance.experiments.readings.weights import Answer, takes_weights


def read_value_weight(answer: Answer, problem: Problem) -> NDArray | None:
    """(G * dv, Dv): v_proj.weight as the first query head of each group sees it, from a problem with one key.

    None if an answer was refused, or the layer takes no other weights.
    """
    return _columns(answer, problem, _units, read_lone_values)


def read_output_weight(answer: Answer, problem: Problem) -> NDArray | None:
    """(Do, G * dv): out_proj.weight, its columns summed over the heads of each group, from a problem with one key.

    None if an answer was refused, or the layer takes no other weights.
    """
    return _columns(answer, problem, _channels, _first_query)


def _first_query(answer: Answer, problem: Problem) -> NDArray | None:
    output = answer(problem)
    return None if output is None else output[:, 0]


def _columns(
    answer: Answer,
    problem: Problem,
    ones: Callable[[Problem], Sequence[Problem]],
    read: Callable[[Answer, Problem], NDArray | None],
) -> NDArray | None:
    """What is read of the first item of each problem, as a column; None if one can't be read."""
    if not takes_weights(answer, problem.config):
        return None
    columns = []
    for one in ones(problem):
        column = read(answer, one)
        if column is None:
            return None
        columns.append(column[0].ravel())
    return np.stack(columns, axis=-1)


@lru_cache(maxsize=256)
def _units(problem: Problem) -> tuple[Problem, ...]:
    """Each channel of the value input alone: each problem once."""
    shape = problem.sizes.batch, 1
    return tuple(
        changed(problem, {"v_proj.bias": 0.0}, values=np.broadcast_to(unit, (*shape, len(unit))))
        for unit in np.eye(problem.config.value_dim)
    )


@lru_cache(maxsize=256)
def _channels(problem: Problem) -> tuple[Problem, ...]:
    """Each channel of the values alone."""
    config = problem.config
    width = config.num_kv_heads * config.value_head_dim
    values = np.ones((problem.sizes.batch, 1, config.value_dim))
    no_biases: dict[str, NDArray | float] = {"v_proj.bias": 0.0, "out_proj.bias": 0.0}
    found = []
    for channel in range(width):
        passing = np.zeros((width, config.value_dim))
        passing[channel, 0] = 1.0
        found.append(changed(problem, {"v_proj.weight": passing, **no_biases}, values=values))
    return tuple(found)
