"""Places: sets of queries, keys, heads and items by which a mask may differ; bool, broadcastable to (B, H, Lq, Lk)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from mha_core.reference.state import State

Place = tuple[str, Callable[[State], NDArray]]
"""(words, the set)."""

IndexSet = Callable[[NDArray, int], NDArray]
"""(indices 0..n - 1, n) -> bool (n,)."""

INDICES: Mapping[str, tuple[str, IndexSet]] = {
    "first": ("the first {}", lambda i, n: i == 0),
    "last": ("the last {}", lambda i, n: i == n - 1),
    "but-first": ("every {} but the first", lambda i, n: i != 0),
    "but-last": ("every {} but the last", lambda i, n: i != n - 1),
    "odd": ("{0} 1, {0} 3, {0} 5, ...", lambda i, n: i % 2 == 1),
    "even": ("{0} 0, {0} 2, {0} 4, ...", lambda i, n: i % 2 == 0),
    "second-half": ("{0} n // 2 and those after it", lambda i, n: i >= n // 2),
    "first-half": ("each {0} before {0} n // 2", lambda i, n: i < n // 2),
    "first-two": ("the first two {}s", lambda i, n: i < 2),
    "last-two": ("the last two {}s", lambda i, n: i >= n - 2),
    "but-first-two": ("every {} but the first two", lambda i, n: i >= 2),
    "each-third": ("{0} 0, {0} 3, {0} 6, ...", lambda i, n: i % 3 == 0),
    "but-each-third": ("every {0} but {0} 0, {0} 3, {0} 6, ...", lambda i, n: i % 3 != 0),
}

AXES = {"item": 0, "head": 1, "query": 2, "key": 3}


def position(state: State) -> NDArray:
    """Integers (B or 1, 1, Lq, 1): where each query stands."""
    offset = np.asarray(state.inputs.mask.query_offset, np.int64).reshape(-1, 1, 1, 1)
    return offset + np.arange(state.sizes.query_len)[:, None]


def ahead(state: State) -> NDArray:
    """Integers (B or 1, 1, Lq, Lk): how far a key stands ahead of the query's position."""
    return np.arange(state.sizes.key_len) - position(state)


def on_axis(axis: str, indices: IndexSet) -> Callable[[State], NDArray]:
    """The set of some indices of one axis: "item", "head", "query" or "key"."""

    def where(state: State) -> NDArray:
        shape = state.sizes.batch, state.config.num_heads, state.sizes.query_len, state.sizes.key_len
        n = shape[AXES[axis]]
        form = [1] * 4
        form[AXES[axis]] = n
        return indices(np.arange(n), n).reshape(form)

    return where


def places_on(axis: str) -> dict[str, Place]:
    """Name -> the set on one axis: "item", "head", "query" or "key"."""
    return {
        f"{name}-{axis}": (words.format(axis), on_axis(axis, indices)) for name, (words, indices) in INDICES.items()
    }


DIAGONALS: Mapping[str, Place] = {
    "own-index": ("the key of the query's own index", lambda s: _own(s)),
    "own-position": ("the key at the query's position", lambda s: ahead(s) == 0),
    "key-before": ("the key just before the query's position", lambda s: ahead(s) == -1),
    "key-after": ("the key just after the query's position", lambda s: ahead(s) == 1),
    "future": ("keys after the query's position", lambda s: ahead(s) > 0),
    "far-past": ("keys more than one before the query's position", lambda s: ahead(s) < -1),
}


def _own(state: State) -> NDArray:
    return np.arange(state.sizes.key_len) == np.arange(state.sizes.query_len)[:, None]
