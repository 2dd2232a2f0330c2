"""Faults that only long calls show: windows, chunks, tables of positions and scales that depend on the length.

Each framework's test plants them into a subclass of its layer.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Keeps = Callable[[NDArray, NDArray], NDArray]
"""(positions of queries, of keys) -> bool, the keys that a layer with the fault attends to."""

WINDOWS: dict[str, Keeps] = {
    "window-32": lambda i, j: abs(i - j) < 32,
    "left-window-128": lambda i, j: i - j < 128,
    "window-256": lambda i, j: abs(i - j) <= 256,
    "chunk-64": lambda i, j: i // 64 == j // 64,
    "table-of-128": lambda i, j: j < 128,
}

SCALES: dict[str, Callable[[int], float]] = {
    "scale-log-length": lambda length: float(np.log(length) / np.log(7)),
    "scale-beyond-128": lambda length: max(1.0, float(np.log(length) / np.log(128))),
}
"""Factors on the queries by the number of keys: of all lengths but 7, and only beyond those of the training."""

FAULTS = (*WINDOWS, *SCALES)


def kept(fault: str, query_len: int, key_len: int) -> NDArray[np.bool_]:
    """Bool (Lq, Lk): the keys that a layer with the fault attends to; all of them where it would be none."""
    i, j = np.ogrid[:query_len, :key_len]
    keeps = np.broadcast_to(WINDOWS.get(fault, lambda i, j: i >= 0)(i, j), (query_len, key_len))
    return keeps | ~keeps.any(axis=-1, keepdims=True)


def factor(fault: str, key_len: int) -> float:
    """The factor of the fault on the queries."""
    return SCALES.get(fault, lambda length: 1.0)(key_len)
