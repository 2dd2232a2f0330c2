"""ArraySpec, the properties of an array that the checks of a call need, and CallSizes, which they return."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

Dim = int | None
"""One size; None while a tracing framework does not know it yet."""


class ArraySpec(NamedTuple):
    """The shape of an array, and its dtype by name."""

    shape: tuple[Dim, ...]
    dtype: str


class CallSizes(NamedTuple):
    """The sizes of one call; key_len counts the past_len keys of a cache too.

    Integers; while a framework traces, also its symbols, or None for unknown sizes.
    """

    batch: Any
    query_len: Any
    key_len: Any
    past_len: Any = 0


def describe_array(array: Any) -> ArraySpec:
    """The ArraySpec of a NumPy array, or of any array whose dtype prints as NumPy's does."""
    dtype = _name(array.dtype) if isinstance(array.dtype, np.dtype) else str(array.dtype)  # without the byte order
    return ArraySpec(tuple(array.shape), dtype)


@cache
def _name(dtype: np.dtype) -> str:
    """NumPy puts it together anew each time, which takes longer than a sum of ten numbers."""
    return dtype.name
