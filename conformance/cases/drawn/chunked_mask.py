"""The chunked mask of a problem that is drawn: how long a chunk is, and where each item's first one begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mha_core import AttentionInputs
from mha_core.call.sizes import CallSizes
from mha_core.parts.chunked_mask import ChunkedMask

CHOICES: Mapping[str, Sequence[Any]] = {
    "chunk": (None, 3, 1, 2, 5),
    "chunk.start": ("at 0", "elsewhere", "per item"),
}
END = "-parts2"


def chosen(ask: Callable[[str], Any]) -> dict[str, ChunkedMask | None]:
    """The settings that are chosen."""
    size = ask("chunk")
    if size is not None:
        ask("chunk.start")
    return {"chunked_mask": None if size is None else ChunkedMask(size)}


def given(inputs: AttentionInputs, made: Mapping[str, Any], sizes: CallSizes) -> AttentionInputs:
    """The call with the start that is chosen, from -5 to the number of keys."""
    where = made.get("chunk.start", "at 0")
    if where == "at 0":
        return inputs
    rng = np.random.default_rng([made["seed"], 4])
    starts = rng.integers(-5, sizes.key_len + 1, size=sizes.batch)
    start = starts if where == "per item" else int(rng.integers(-5, sizes.key_len + 1))
    return replace(inputs, mask=replace(inputs.mask, chunk_start=start))
