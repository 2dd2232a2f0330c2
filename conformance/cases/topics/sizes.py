"""Sizes, biases and heads."""

from conformance.cases.parts import COINCIDE, allowed_per_item, bias_per_head, case, square_case
from mha_core import AttentionConfig

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
    case(
        "as-many-heads-as-queries-and-keys",
        "heads taken for positions, (B, L, H, d), where there are as many",
        num_heads=7,
        query_len=7,
        mask=bias_per_head,
        same_sizes=COINCIDE,
    ),
    case(
        "as-many-queries-and-keys-as-channels",
        "positions taken for channels, (B, H, d, L), where there are as many",
        query_len=11,
        key_len=11,
        mask=allowed_per_item,
        same_sizes=COINCIDE,
    ),
    square_case(
        "one-head-of-the-whole-width",
        "inputs taken for heads that are split already; a mask without its head axis, as many items as queries",
        AttentionConfig(13, 1, bias=True),
        batch=7,
        mask=allowed_per_item,
    ),
]
