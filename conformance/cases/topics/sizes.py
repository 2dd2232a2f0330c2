"""Sizes, biases and heads."""

from __future__ import annotations

from conformance.cases.parts import case, square_case

CASES = [
    square_case(
        "ragged-square",
        "most mistakes: padded queries, an empty item, wrong axes that equal sizes let through",
        batch=5,
        valid_lens=[0, 1, 3, 6, 7],
    ),
    case("prime", "a wrong axis, size or transposition anywhere", as_users_run=True),
    case("no-bias", "a bias that is added though there is none", bias=False),
    case("no-key-bias", "one bias flag for all projections", bias={"q_proj": True, "v_proj": True, "out_proj": True}),
    case(
        "grouped-heads",
        "key heads tiled instead of repeated; group gradients not summed",
        num_heads=6,
        num_kv_heads=3,
        valid_lens=[4, 6],
    ),
    case("multi-query", "one key head for all query heads", num_heads=6, num_kv_heads=1),
]
