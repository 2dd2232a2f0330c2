"""Measures: what a head does, in a number each, from its weights."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Measure:
    """A number that describes a head: a function of a query's attention weights, averaged over queries.

    Attributes:
        words: the meaning of the number.
        of: (weights (H, Lq, Lk), offsets (Lq, Lk)) -> (H, Lq). An offset is key position - query position.
        by_position: whether queries and keys must be positions of the same text.
        edge: the index of a query to leave out of the mean, such as 0 for the weight of the previous key; or None.
    """

    words: str
    of: Callable[[NDArray, NDArray], NDArray]
    by_position: bool = False
    edge: int | None = None


def entropy(weights: NDArray, offsets: NDArray) -> NDArray:
    """Return the entropy of each query's weights in bits: 0 if one key has all, log2(Lk) if all have the same."""
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.where(weights == 0.0, 0.0, weights * np.log2(weights))
    return 0.0 - bits.sum(axis=-1)


def at(offset: int) -> Callable[[NDArray, NDArray], NDArray]:
    """Return a function for `Measure.of`: the weight of the key that is `offset` positions after the query."""
    return lambda weights, offsets: np.where(offsets == offset, weights, 0.0).sum(axis=-1)


MEASURES = {
    "entropy": Measure("entropy in bits: 0 where one key gets everything", entropy),
    "peak": Measure("the largest weight", lambda weights, offsets: weights.max(axis=-1, initial=0.0)),
    "distance": Measure(
        "how many tokens away, on average", lambda weights, offsets: (weights * np.abs(offsets)).sum(axis=-1), True
    ),
    "before": Measure("weight of the token before", at(-1), True, 0),
    "itself": Measure("weight of the token itself", at(0), True),
    "next": Measure("weight of the next token", at(1), True, -1),
    "first": Measure("weight of the first token", lambda weights, offsets: weights[..., 0]),
}
"""Name -> measure. The first token is [CLS] in BERT."""


def measured(weights: NDArray, where: NDArray[np.bool_], *, is_cross: bool) -> dict[str, list[float | None]]:
    """Return each measure of each head, averaged over the queries that are not fully masked.

    Args:
        weights: (H, Lq, Lk).
        where: bool (H, Lq, Lk), True at keys that a query may attend to.
        is_cross: whether queries and keys are positions of different texts.

    Returns:
        Name of a measure -> a number for each head; None where a head has no such number. NaN stays NaN.

    >>> before = np.eye(4, k=-1)[None]
    >>> before[0, 0, 0] = 1.0
    >>> found = measured(before, np.ones((1, 4, 4), dtype=bool), is_cross=False)
    >>> found["before"], found["entropy"], found["distance"]
    ([1.0], [0.0], [0.75])
    """
    heads, query_len, key_len = weights.shape
    offsets = np.arange(key_len)[None, :] - (np.arange(query_len) + key_len - query_len)[:, None]
    found: dict[str, list[float | None]] = {}
    for name, measure in MEASURES.items():
        counts = where.any(axis=-1)  # (H, Lq)
        if measure.by_position and is_cross:
            counts[:] = False
        if measure.edge is not None and key_len == query_len:
            counts[:, measure.edge] = False
        each = measure.of(weights, offsets) if key_len else np.zeros((heads, query_len))
        found[name] = [float(row[own].mean()) if own.any() else None for row, own in zip(each, counts, strict=True)]
    return found
