"""Blocks: how a fast path cuts a call into blocks of queries, and which keys a block needs.

A fast path computes a block of queries against the keys that any of them may attend to, so it never
holds all Lq x Lk scores, and does not touch keys that `valid_lens`, `causal` or `window` exclude for
the whole block. This module needs no array of any framework.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mha_core.call.arguments import CallSizes
from mha_core.call.masks import AttentionMask, interval

Array = TypeVar("Array")
Part = TypeVar("Part")

SMALLEST_BLOCK = 32
"""Queries below which a block's matrix products are no longer worth their overhead."""


class Block(NamedTuple, Generic[Part]):
    """A part of all scores (B, H, Lq, Lk): for each axis, a slice with integer start and stop.

    In a TensorFlow graph, where a start may be known only at run time, each field is a `backends.tf.ops.cuts.Span`
    instead (a start and a size), or None for the whole axis.
    """

    items: Part
    heads: Part
    queries: Part
    keys: Part


class Operands(NamedTuple, Generic[Array]):
    """The queries (B, H, Lq, d), keys (B, G, L, d) and values (B, G, L, dv) that attention is computed from.

    Keys and values are tuples of one array, or of two (past and new positions), which are not concatenated. For the
    additive score w . tanh(A q + C k), queries hold A q and keys hold C k, both of width S.
    """

    queries: Array
    keys: tuple[Array, ...]
    values: tuple[Array, ...]

    def map(self, convert: Any) -> Operands[Any]:
        """Return these operands with `convert(array)` in place of each array."""
        return Operands(convert(self.queries), tuple(map(convert, self.keys)), tuple(map(convert, self.values)))


def query_block(query_len: int, bytes_per_query: int, budget: int) -> int:
    """Return how many queries to compute at once: the largest power of two whose scores fit in `budget` bytes.

    It is at least 32, even if 32 do not fit. If `query_len` is smaller, return `query_len`, but at least 1.

    Args:
        bytes_per_query: the size of the scores of one query: Lk * itemsize * (heads that are computed at once).
        budget: the most bytes that a block's scores should have, so that they fit in the processor's caches.

    >>> query_block(2048, 2048 * 4, budget=2**21)
    256
    >>> query_block(8192, 2**24, budget=2**21), query_block(100, 400, budget=2**21), query_block(0, 0, budget=1)
    (32, 100, 1)
    """
    fitting = max(SMALLEST_BLOCK, budget // max(bytes_per_query, 1))
    return max(1, min(query_len, 1 << (fitting.bit_length() - 1)))


def query_blocks(query_len: int, block: int) -> list[slice]:
    """Return slices of `block` queries each; the last one has the rest.

    >>> query_blocks(7, 3)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 7, None)]
    """
    return [slice(start, min(start + block, query_len)) for start in range(0, query_len, block)]


class Reach(NamedTuple):
    """An interval of keys for each query, allowed by `valid_lens`, `causal` and `window`: first <= key < stop.

    `first` and `stop` are integer arrays, broadcastable to (B, Lq). The mask's `allowed` and `bias` are ignored.
    """

    first: NDArray[np.int64]
    stop: NDArray[np.int64]

    def keys(self, items: slice, queries: slice) -> slice:
        """Return the smallest slice with all keys that any of these queries, in any of these items, may attend to."""
        first, stop = _part(self.first, items, queries), _part(self.stop, items, queries)
        first, stop = np.broadcast_arrays(first, stop)
        open_rows = first < stop
        if not open_rows.any():
            return slice(0, 0)
        return slice(int(first[open_rows].min()), int(stop[open_rows].max()))

    def is_open(self, items: slice, queries: slice, keys: slice) -> bool:
        """Return whether each of these queries, in each of these batch items, may attend to all of these keys."""
        first, stop = _part(self.first, items, queries), _part(self.stop, items, queries)
        return bool((first <= keys.start).all() and (stop >= keys.stop).all())


def reach(mask: AttentionMask, sizes: CallSizes) -> Reach:
    """Return the interval of keys that `valid_lens`, `causal` and `window` allow each query.

    The mask's `valid_lens` and `query_offset` must be integers or NumPy arrays.

    >>> sizes = CallSizes(batch=2, query_len=6, key_len=8)
    >>> within = reach(AttentionMask(valid_lens=np.array([3, 8]), causal=True), sizes)
    >>> within.keys(slice(0, 2), slice(2, 4)), within.keys(slice(0, 1), slice(2, 4))
    (slice(0, 4, None), slice(0, 3, None))
    >>> within.is_open(slice(0, 1), slice(4, 6), slice(0, 3))
    True
    """
    first = np.zeros((1, 1), dtype=np.int64)
    stop = np.full((1, 1), sizes.key_len, dtype=np.int64)
    if mask.valid_lens is not None:
        lens = np.asarray(mask.valid_lens, dtype=np.int64)
        stop = np.minimum(stop, lens[:, None] if lens.ndim == 1 else lens)
    if mask.has_positions:
        from_position, to_position = interval(mask, sizes.query_len)
        if from_position is not None:
            first = np.maximum(first, from_position)
        if to_position is not None:
            stop = np.minimum(stop, to_position)
    return Reach(first, np.maximum(stop, 0))


def _part(array: NDArray[np.int64], items: slice, queries: slice) -> NDArray[np.int64]:
    rows = array if array.shape[0] == 1 else array[items]
    return rows if rows.shape[1] == 1 else rows[:, queries]
