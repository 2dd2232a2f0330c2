"""Masks read off the output: which keys have a weight; how far a query reaches; what an excluded key has instead of 0.

With equal scores the weights of a row are uniform over the allowed keys, whatever the projections, so that

    allowed[b, h, i, j] = (weights[b, h, i, j] > 0)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.readings.weights import Answer, read_weights

NOTICEABLE = 1e-6
"""A weight above this share of its row's largest counts as one; below it may be rounding."""


def read_allowed(answer: Answer, problem: Problem) -> NDArray[np.bool_] | None:
    """Bool (B, H, Lq, Lk): the keys that have a weight, of a problem with equal scores; None if refused.

    >>> from conformance.experiments.designs import CONFIGS, EQUAL_SCORES, generic
    >>> from mha_core import AttentionMask, reference
    >>> problem = generic(CONFIGS[0], weights=EQUAL_SCORES, mask=AttentionMask(causal=True))
    >>> found = read_allowed(lambda one: reference.run(one.config, one.weights, one.inputs).output, problem)
    >>> found[0, 0].astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0]])
    """
    weights = read_weights(answer, problem)
    if weights is None:
        return None
    size = np.abs(weights)
    return np.asarray(size > NOTICEABLE * size.max(axis=-1, keepdims=True, initial=0.0))


def distances(allowed: NDArray, start: int) -> tuple[set[int], set[int]]:
    """How far ahead of their queries keys stand: (those let in, those kept out), if query i stands at start + i.

    A distance in both sets is no matter of distance alone.
    """
    _, _, queries, keys = np.indices(allowed.shape)
    ahead = keys - queries - start
    return set(np.unique(ahead[allowed]).tolist()), set(np.unique(ahead[~allowed]).tolist())


def prefix(allowed: NDArray) -> NDArray | None:
    """(B, H, Lq): how many first keys each row lets in; None if some row lets in others than its first."""
    counts = allowed.sum(axis=-1)
    is_prefix = np.arange(allowed.shape[-1]) < counts[..., None]
    return counts if np.array_equal(is_prefix, allowed) else None


def log_ratios(weights: NDArray, allowed: NDArray) -> NDArray:
    """(B, H, Lq, Lk): log of each excluded key's weight less the mean log weight of the row's allowed ones.

    NaN for allowed keys, and where a weight is 0.
    """
    with any_numbers:
        logs = np.log(np.where(weights > 0.0, weights, np.nan))
        counts = allowed.sum(axis=-1, keepdims=True)
        mean = np.where(allowed, logs, 0.0).sum(axis=-1, keepdims=True) / counts
    return np.where(allowed, np.nan, logs - mean)
