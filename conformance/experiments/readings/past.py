r"""Keys and values as the attention sees them, those of a past in front of the new ones, read off the output.

A mask that lets query i attend to key i alone gives that key the weight 1, whatever it scores: heads are values.
Differences of scores tell keys up to one number per query, so each key less the last one, where queries are known:

    log a_ij - log a_il = scale * q_i . (k_j - k_l)

Both are read in the same way from the subject and from a model, whose other mistakes are then in both.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.designs import changed
from conformance.experiments.linear import pseudo_inverse
from conformance.experiments.readings.values import read_heads
from conformance.experiments.readings.weights import Answer, read_weights
from mha_core import AttentionMask


def read_joined_values(answer: Answer, problem: Problem) -> NDArray | None:
    """(B, G, Lk, dv): the values of every key, of a problem with as many queries as keys; None if refused."""
    config, sizes = problem.config, problem.sizes
    if sizes.query_len != sizes.key_len:
        return None
    for one in _alone(problem):
        heads = read_heads(answer, one)
        if heads is not None:
            return heads[:, :: config.num_heads // config.num_kv_heads]
    return None


@lru_cache(maxsize=256)
def _alone(problem: Problem) -> tuple[Problem, Problem]:
    """The problem where query i attends to key i alone: by a keep-mask, or by a window."""
    alone = AttentionMask(allowed=np.eye(problem.sizes.key_len, dtype=bool)), AttentionMask(window=(0, 0))
    return changed(problem, mask=alone[0]), changed(problem, mask=alone[1])


def read_joined_keys(answer: Answer, queries: NDArray, problem: Problem) -> NDArray | None:
    """(B, G, Lk, d): each key less the last one, by least squares.

    Args:
        answer: of the subject or a model.
        queries: (B, H, Lq, d), of the problem.
        problem: without a mask, and with a scale that is not 0.

    Returns:
        None if an answer was refused or a weight is not positive.
    """
    config = problem.config
    weights = read_weights(answer, problem)
    if weights is None or not (weights > 0.0).all():
        return None
    logs = np.log(weights)
    scores = (logs - logs[..., -1:]) / config.softmax_scale
    batch, _, query_len, key_len = scores.shape
    groups = config.num_kv_heads
    rows = config.num_heads // groups * query_len
    of_group = scores.reshape(batch, groups, rows, key_len)
    known = queries.reshape(batch, groups, rows, -1)
    if rows < known.shape[-1]:
        return None
    keys: NDArray = pseudo_inverse(known) @ of_group
    return keys.swapaxes(-1, -2)
