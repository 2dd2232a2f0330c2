"""Chunked mask: queries attend within their own chunk of positions alone (Llama 4).

    key j is allowed iff (j - chunk_start) // size == (position - chunk_start) // size

Query i stands at position query_offset + i; `chunk_start` of a call says where the first chunk begins: behind the
padding of items that are padded on the left. The rule joins `causal`, `window` and the other sources of a mask by AND.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.errors import SpecError


@dataclass(frozen=True)
class ChunkedMask:
    """How long a chunk is. Frozen; checked when it is made.

    Args:
        size: positions in a chunk: `attention_chunk_size` of Llama 4's config.

    Raises:
        SpecError: a size that is no positive integer.

    >>> ChunkedMask(0)
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: chunked_mask.size must be an integer from 1 to 2147483647. Got 0.
    """

    size: int

    def __post_init__(self) -> None:
        size = self.size
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LONGEST:
            raise SpecError(f"chunked_mask.size must be an integer from 1 to {LONGEST}. Got {size!r}.")

    @classmethod
    def of(cls, given: ChunkedMask | Mapping[str, Any] | int | None) -> ChunkedMask | None:
        """The settings of a mapping of fields, or of a size alone."""
        if given is None or isinstance(given, ChunkedMask):
            return given
        if not isinstance(given, Mapping):
            return cls(given)
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise SpecError(f"chunked_mask has no field {name!r} (known: {', '.join(known)})")
        if "size" not in given:
            raise SpecError("chunked_mask lacks 'size' (it needs: size)")
        return cls(**given)


LONGEST = 2**31 - 1
"""The largest of int32, as in `mha_core.call.checks`."""


def first_of_chunk(position: NDArray[np.integer], start: Any, size: int) -> NDArray[np.int64]:
    """The first position of the chunk that each position is in; chunks before `start` are as long as the others.

    >>> first_of_chunk(np.array([0, 1, 2, 3, 4, 5]), 1, 3)
    array([-2,  1,  1,  1,  4,  4])
    """
    first: NDArray[np.int64] = start + (position - start) // size * size
    return first
