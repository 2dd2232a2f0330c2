"""Cases of the chunked mask: with a past, behind padding on the left, and beside causal masks and windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.cases.parts import bare_case, case, poison_past


def behind_left_padding(starts: list[int], key_len: int) -> Any:
    """Bool (B, 1, 1, Lk): the keys behind each item's padding."""
    return (np.arange(key_len) >= np.array(starts)[:, None])[:, None, None]


CASES = [
    case(
        "chunked",
        "no chunks, a window in their place, chunks of one position more or less, keys of earlier chunks",
        chunked_mask=3,
        causal=True,
        query_offset=[2, 1],
    ),
    case(
        "chunked-bidirectional",
        "keys behind the end of a chunk, a quotient rounded towards 0, chunks that begin elsewhere in every item",
        num_heads=6,
        num_kv_heads=2,
        head_dim=10,
        chunked_mask=4,
        batch=3,
        key_len=9,
        query_len=8,
        chunk_start=[2, 3, 1],
        query_offset=1,
    ),
    case(
        "chunked-past",
        "a past that ends inside a chunk: chunks counted from the new keys, or from the first query",
        num_heads=4,
        num_kv_heads=2,
        head_dim=12,
        query_scale={"rule": "llama4", "beta": 0.5, "length": 8},
        chunked_mask={"size": 6},
        batch=3,
        key_len=16,
        past_len=10,
        causal=True,
        query_offset=[10, 9, 7],
        valid_lens=[16, 13, 11],
        change=poison_past,
    ),
    case(
        "chunked-padded-left",
        "chunks that count the padding in front of an item, in the last item or in every one",
        chunked_mask=4,
        batch=4,
        query_len=6,
        key_len=10,
        allowed=behind_left_padding([0, 3, 1, 2], 10),
        causal=True,
        query_offset=4,
        chunk_start=[0, 3, 1, 2],
    ),
    bare_case(
        "chunked-window",
        "one of causal, window and chunks left out where all three are there, or joined by OR",
        embed_dim=72,
        head_dim=12,
        chunked_mask=5,
        batch=3,
        query_len=7,
        key_len=10,
        split=True,
        causal=True,
        window=(2, None),
        query_offset=3,
        chunk_start=1,
    ),
    case(
        "chunked-blocks",
        "blocks of a fast path whose keys begin or end elsewhere than their chunks",
        head_dim=5,
        value_head_dim=7,
        chunked_mask=24,
        query_len=70,
        key_len=83,
        causal=True,
        query_offset=13,
        chunk_start=[0, 9],
        expensive=True,
    ),
]
