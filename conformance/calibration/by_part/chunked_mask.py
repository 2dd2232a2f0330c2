"""The chunked mask, in every way that `Ways` can name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.calibration.ways import Ways
from mha_core import AttentionMask
from mha_core.call.masks import allowed_keys
from mha_core.call.sizes import CallSizes


def allowed(ways: Ways, mask: AttentionMask, sizes: CallSizes, num_heads: int) -> NDArray[np.bool_]:
    """Bool (B, H, Lq, Lk): all sources of the mask, and the chunks."""
    size = sizes.chunk_size
    if size is None or ways.chunks == "interval":
        return allowed_keys(mask, sizes, num_heads)
    whole = allowed_keys(mask, sizes._replace(chunk_size=None), num_heads)
    start, offset = (np.asarray(x).reshape(-1, 1, 1, 1) for x in (mask.chunk_start, mask.query_offset))
    query, key = offset + np.arange(sizes.query_len)[:, None], np.arange(sizes.key_len)
    if ways.chunks == "numbers":
        same: NDArray[np.bool_] = np.floor((query - start) / size) == np.floor((key - start) / size)
    else:  # how far back and ahead of a query its chunk reaches
        back = (query - start) % size
        same = (key >= query - back) & (key < query - back + size)
    return whole & same
