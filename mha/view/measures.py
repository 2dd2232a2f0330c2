"""Measures: what a head does, in a number each, from its weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Measure = Callable[[NDArray, NDArray], NDArray]
"""Weights (H, Lq, Lk) and the distance of each key from its query (Lq, Lk), positive after it -> (H, Lq)."""


def entropy(weights: NDArray, offsets: NDArray) -> NDArray:
    """In bits: 0 where one key gets all, log2(Lk) where all get the same."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return (
            -np.where(weights > 0.0, weights * np.log2(weights), np.where(np.isnan(weights), np.nan, 0.0)).sum(-1) + 0.0
        )


def distance(weights: NDArray, offsets: NDArray) -> NDArray:
    """How many positions away, on average."""
    return (weights * np.abs(offsets)).sum(-1)


def peak(weights: NDArray, offsets: NDArray) -> NDArray:
    """The largest weight."""
    return weights.max(-1, initial=0.0)


def at(offset: int) -> Measure:
    """The weight of the key so many positions after the query."""
    return lambda weights, offsets: np.where(offsets == offset, weights, 0.0).sum(-1)


def first(weights: NDArray, offsets: NDArray) -> NDArray:
    """The weight of the first key, which is [CLS] in BERT."""
    return weights[..., 0]


MEASURES: dict[str, tuple[Measure, str, bool]] = {
    "entropy": (entropy, "entropy in bits: 0 where one key gets everything", False),
    "peak": (peak, "the largest weight", False),
    "distance": (distance, "how many tokens away, on average", True),
    "before": (at(-1), "weight of the token before", True),
    "itself": (at(0), "weight of the token itself", True),
    "next": (at(1), "weight of the next token", True),
    "first": (first, "weight of the first token", False),
}
"""Name -> the measure, what it says, and whether it needs queries and keys to be positions of one text.

A head's number is the mean over its queries; before the first token and after the last there is none, and these
queries do not count. Queries without a key count nowhere.
"""

EDGES = {"before": 0, "next": -1}
"""Which query has no such neighbour."""


def measured(weights: NDArray, where: NDArray[np.bool_], *, is_cross: bool) -> dict[str, list[float | None]]:
    """Each measure of each head.

    Args:
        weights: (H, Lq, Lk).
        where: bool (H, Lq, Lk), which keys a query may attend to.
        is_cross: whether queries and keys are positions of different texts.

    Returns:
        Name -> a number for each head; None where it has none. NaN stays NaN.

    >>> before = np.eye(4, k=-1)[None]
    >>> before[0, 0, 0] = 1.0
    >>> found = measured(before, np.ones((1, 4, 4), dtype=bool), is_cross=False)
    >>> found["before"], found["entropy"], found["distance"]
    ([1.0], [0.0], [0.75])
    """
    heads, query_len, key_len = weights.shape
    offsets = np.arange(key_len)[None, :] - (np.arange(query_len) + key_len - query_len)[:, None]
    found: dict[str, list[float | None]] = {}
    for name, (measure, _, needs_positions) in MEASURES.items():
        counts = where.any(axis=-1)  # (H, Lq)
        if needs_positions and is_cross:
            counts = np.zeros_like(counts)
        if name in EDGES and key_len == query_len:
            counts = counts.copy()
            counts[:, EDGES[name]] = False
        each = measure(weights, offsets) if key_len else np.zeros((heads, query_len))
        found[name] = [float(row[own].mean()) if own.any() else None for row, own in zip(each, counts, strict=True)]
    return found
