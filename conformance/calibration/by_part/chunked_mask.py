"""The chunked mask, in every way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from conformance.calibration.odds import odds
from conformance.cases.choices import Space
from mha_core import AttentionMask
from mha_core.call.masks import allowed_keys
from mha_core.call.sizes import CallSizes

SPACE: Space = {
    "chunk": odds({None: 8, 3: 1, 16: 1, 1: 1}),
    "chunk.start": ("at 0", "elsewhere", "per item"),
}

WAYS: Mapping[str, Mapping[str, str]] = {
    "chunks": {"reach": "einsum divide-last", "numbers": "sequential two-parts"},
}
"""Where a query's chunk begins and ends; equal numbers of chunks; or how far a chunk reaches back from a query, and
ahead.
"""


def allowed(ways: Mapping[str, str], mask: AttentionMask, sizes: CallSizes, num_heads: int) -> NDArray[np.bool_]:
    """Bool (B, H, Lq, Lk): all sources of the mask, and the chunks."""
    size, way = sizes.chunk_size, ways.get("chunks")
    if size is None or way is None:
        return allowed_keys(mask, sizes, num_heads)
    whole = allowed_keys(mask, sizes._replace(chunk_size=None), num_heads)
    start, offset = (np.asarray(x).reshape(-1, 1, 1, 1) for x in (mask.chunk_start, mask.query_offset))
    query, key = offset + np.arange(sizes.query_len)[:, None], np.arange(sizes.key_len)
    if way == "numbers":
        same: NDArray[np.bool_] = np.floor((query - start) / size) == np.floor((key - start) / size)
    else:  # how far back and ahead of a query its chunk reaches
        back = (query - start) % size
        same = (key >= query - back) & (key < query - back + size)
    return whole & same
