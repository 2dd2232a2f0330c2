"""Long calls of layers with rotary positions or a query-key norm: far keys, wide heads, every kind of mask at once.

Such layers have code of their own for these, and what is right without rotary positions may be wrong with them.
"""

from typing import Any

import numpy as np

from conformance.cases.case import Case, Rng
from conformance.cases.parts import FINFO_MIN, SIZES_OF_MODELS, case, random_allowed
from mha_core import AttentionConfig, AttentionMask


def far_window(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask: a far window, biases of finfo.min and int32 lengths; item 1 has queries without a key."""
    lens = np.linspace(90, case.key_len, case.batch).astype(np.int32)
    lens[1] = 52
    bias = rng.normal(size=(case.batch, 1, 1, case.key_len))
    bias[..., 80:83] = FINFO_MIN
    return AttentionMask(valid_lens=lens, bias=bias, window=(4950, 0), query_offset=5000)


def far_window_by_head(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask: a window that ends at the query, `allowed` and bias by head; item 1 has queries without a key."""
    lens = np.linspace(90, case.key_len, case.batch).astype(np.int64)
    lens[1] = 67
    bias = rng.normal(size=(case.config.num_heads, case.query_len, case.key_len))
    bias[..., 80:83] = FINFO_MIN
    allowed = random_allowed(rng, case, heads=case.config.num_heads)
    return AttentionMask(valid_lens=lens, allowed=allowed, bias=bias, window=(60, 0), query_offset=125)


LAYER = AttentionConfig(
    256, 4, num_kv_heads=2, value_head_dim=6, query_dim=10, key_dim=9, value_dim=8, output_dim=14, bias=True
)
"""Heads 64 wide on half as many key heads."""

CALL: dict[str, Any] = {
    "batch": 9,
    "query_len": 5,
    "key_len": 130,
    "past_len": 97,
    "same_sizes": SIZES_OF_MODELS,
}

CASES = [
    case(
        "rotary-long",
        "positions beyond a table or a range of small numbers; masks, blocks and a past that only layers without "
        "rotary positions have; the dynamic rule left out",
        LAYER,
        rotary={"base": 500.0, "rule": {"rope_type": "dynamic", "factor": 4.0, "max_position_embeddings": 1024}},
        mask=far_window,
        **CALL,
    ),
    case(
        "query-key-norm-long",
        "masks, blocks and a past that only layers without a query-key norm have; the linear rule left out",
        LAYER,
        rotary={"base": 50.0, "rule": {"rope_type": "linear", "factor": 3.0}},
        query_key_norm={"eps": 0.3},
        mask=far_window_by_head,
        **CALL,
    ),
]
