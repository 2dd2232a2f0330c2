"""The chunked mask of a problem that is drawn: how long a chunk is, and where each item's first one begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mha_core import AttentionMask
from mha_core.call.sizes import CallSizes
from mha_core.parts.chunked_mask import ChunkedMask

CHOICES: Mapping[str, Sequence[Any]] = {
    "chunk": (None, 3, 1, 2, 5),
    "chunk.start": ("at 0", "elsewhere", "per item"),
}
"""As a `conformance.cases.choices.Space` has them."""


def chosen(ask: Callable[[str], Any]) -> ChunkedMask | None:
    """The settings that are chosen."""
    size = ask("chunk")
    if size is None:
        return None
    ask("chunk.start")
    return ChunkedMask(size)


def with_start(rng: np.random.Generator, mask: AttentionMask, sizes: CallSizes, where: str) -> AttentionMask:
    """The mask with the start that is chosen, from -5 to the number of keys."""
    starts = rng.integers(-5, sizes.key_len + 1, size=sizes.batch)
    if where == "at 0":
        return mask
    start = starts if where == "per item" else int(rng.integers(-5, sizes.key_len + 1))
    return AttentionMask(**{**vars(mask), "chunk_start": start})
