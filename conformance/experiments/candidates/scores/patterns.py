"""Patterns: so much of what depends on where queries and keys stand, added to the scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.scores.places import Place, setting_of
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.sample import Sample
from conformance.zoo.bug import Bug
from mha_core.reference.state import State

Pattern = Callable[[NDArray, NDArray, int], NDArray]
"""(positions of queries (Lq, 1), of keys (Lk,), number of heads) -> (Lq, Lk) or (H, Lq, Lk)."""


def _heads(heads: int) -> NDArray:
    return np.arange(heads)[:, None, None]


def _slopes(heads: int) -> NDArray:
    found: NDArray = 2.0 ** (-8.0 * (_heads(heads) + 1.0) / heads)
    return found


PATTERNS: dict[str, tuple[str, Pattern]] = {
    "distance": ("|i - j|", lambda i, j, n: np.abs(i - j)),
    "key-index": ("the index j of the key", lambda i, j, n: j + 0 * i),
    "product": ("i * j", lambda i, j, n: i * j),
    "diagonal": ("1 where i = j", lambda i, j, n: i == j),
    "before": ("1 where j = i - 1", lambda i, j, n: j == i - 1),
    "after": ("1 where j = i + 1", lambda i, j, n: j == i + 1),
    "future": ("1 where j > i", lambda i, j, n: j > i),
    "past": ("1 where j < i", lambda i, j, n: j < i),
    "square": ("(i - j)^2", lambda i, j, n: (i - j) ** 2),
    "log-distance": ("ln(1 + |i - j|)", lambda i, j, n: np.log1p(np.abs(i - j))),
    "inverse": ("1 / (1 + |i - j|)", lambda i, j, n: 1.0 / (1.0 + np.abs(i - j))),
    "relative": ("j / Lk", lambda i, j, n: j / j.size + 0 * i),
    "alibi": ("ALiBi's slope of the head times |i - j|", lambda i, j, n: _slopes(n) * np.abs(i - j)),
    "alibi-keys": ("ALiBi's slope of the head times j", lambda i, j, n: _slopes(n) * (j + 0 * i)),
    "head-key": ("h * j", lambda i, j, n: _heads(n) * (j + 0 * i)),
    "head-distance": ("h * |i - j|", lambda i, j, n: _heads(n) * np.abs(i - j)),
}

ALIGNED = {False: "", True: " (queries and keys aligned at their ends)"}


def pattern(name: str, end: bool, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """(H, Lq, Lk) or (Lq, Lk), of scores of a shape (B, H, Lq, Lk).

    >>> pattern("distance", False, (1, 2, 2, 3))
    array([[0., 1., 2.],
           [1., 0., 1.]])
    """
    heads, query_len, key_len = shape[-3:]
    places = np.arange(query_len)[:, None] + (key_len - query_len if end else 0)
    return np.asarray(PATTERNS[name][1](places, np.arange(key_len), heads), np.float64)


def with_patterns(place: Place, samples: Sequence[Sample]) -> Iterator[Bug]:
    """The bugs of a place by which so much of one pattern is added; samples are known up to a number for each row."""
    if not any(sample.differs for sample in samples):
        return
    for name, end in product(PATTERNS, ALIGNED):
        numbers = []
        for sample in samples:
            basis = _centred(pattern(name, end, sample.expected.shape))
            surplus = _centred(sample.measured - sample.expected)
            wide = np.broadcast_to(basis, surplus.shape)
            number = float((wide * surplus).sum()) / float((wide * wide).sum())
            if np.abs(surplus - number * wide).max() > 10.0 * sample.tolerance:
                break
            numbers.append((number, sample.setting))
        else:
            for expression in expressions_of(numbers, error=1e-8)[:2]:
                yield _added(place, name, end, expression)


def _centred(array: NDArray) -> NDArray:
    found: NDArray = array - array.mean(axis=-1, keepdims=True)
    return found


def _added(place: Place, name: str, end: bool, number: Expression) -> Bug:
    def change(state: State, array: NDArray) -> NDArray:
        return array + number.at(setting_of(state)) * pattern(name, end, array.shape)

    slug = f"plus-{number.slug}-{name}{'-end' if end else ''}"
    return place.bug(slug, change, f"the definition's plus {number.words} times {PATTERNS[name][0]}{ALIGNED[end]}")
