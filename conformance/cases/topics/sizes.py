"""Sizes, biases and heads."""

from __future__ import annotations

import numpy as np

from conformance.cases.case import Case
from conformance.cases.parts import SQUARE, SQUARE_REASON, fixed, prime_config


def cases() -> list[Case]:
    """The cases of this topic, in the order of `mha cases`."""
    return [
        Case(
            "ragged-square",
            "most mistakes: padded queries, an empty item, wrong axes that equal sizes let through",
            SQUARE,
            batch=5,
            query_len=7,
            mask=fixed(valid_lens=np.array([0, 1, 3, 6, 7])),
            same_sizes=SQUARE_REASON,
        ),
        Case("prime", "a wrong axis, size or transposition anywhere", prime_config()),
        Case("no-bias", "a bias that is added though there is none", prime_config(bias=False)),
        Case(
            "no-key-bias",
            "one bias flag for all projections",
            prime_config(bias={"q_proj": True, "v_proj": True, "out_proj": True}),
        ),
        Case(
            "grouped-heads",
            "key heads tiled instead of repeated; group gradients not summed",
            prime_config(num_heads=6, num_kv_heads=3),
            mask=fixed(valid_lens=np.array([4, 6])),
        ),
        Case("multi-query", "one key head for all query heads", prime_config(num_heads=6, num_kv_heads=1)),
    ]
