"""Every source of a mask, and several together."""

from conformance.cases.parts import (
    COINCIDE,
    allowed_per_head,
    allowed_per_item,
    bias_per_head,
    bias_that_excludes,
    case,
    every_source,
)

OF_EACH_QUERY = [[1, 2, 3, 4, 5], [7, 0, 6, 2, 3]]

CASES = [
    case("valid-lens", "lengths off by one, ignored, or counted from the right", valid_lens=[3, 6]),
    case("valid-lens-per-query", "(B, Lq) lengths read as (B,)", valid_lens=OF_EACH_QUERY),
    case(
        "valid-lens-as-many-items-as-queries",
        "lengths (B,) taken for those of the queries or of the heads, where there are as many",
        num_heads=5,
        batch=5,
        valid_lens=[7, 3, 5, 2, 6],
        same_sizes=COINCIDE,
    ),
    case(
        "valid-lens-as-many-items-as-keys",
        "a padding mask (B, Lk) read as (Lk, B), where both are equal",
        batch=7,
        valid_lens=[7, 3, 5, 2, 6, 4, 1],
        same_sizes=COINCIDE,
    ),
    case("causal", "the diagonal off by one, keys from the future", causal=True),
    case(
        "causal-more-queries",
        "top-left alignment read as bottom-right when Lq > Lk",
        query_len=8,
        key_len=5,
        causal=True,
    ),
    case("causal-bottom-right", "query_offset ignored, or with the wrong sign", causal=True, query_offset=2),
    case(
        "causal-bottom-right-more-queries",
        "rows before the first key, which have nothing to attend to",
        query_len=8,
        key_len=5,
        causal=True,
        query_offset=-3,
    ),
    case("causal-padding", "one of two masks dropped when both are given", valid_lens=[2, 4], causal=True),
    case("causal-offset-per-item", "one query_offset applied to the whole batch", causal=True, query_offset=[1, -2]),
    case("window", "a window off by one, or one-sided", window=(2, 1)),
    case("window-zero", "a width of 0 taken for no bound, on either side", window=(0, 0), query_offset=1),
    case(
        "window-causal",
        "a window that forgets the offset, or replaces the causal mask",
        window=(1, None),
        causal=True,
        query_offset=2,
    ),
    case("allowed", "polarity: True read as masked", mask=allowed_per_item),
    case("allowed-per-head", "a mask per head shared by all heads", mask=allowed_per_head),
    case("bias-per-head", "an additive bias scaled, dropped, or shared by heads", mask=bias_per_head),
    case("bias-excludes", "-inf in the bias that turns into NaN, forward or backward", mask=bias_that_excludes),
    case("every-source", "sources that are not combined with AND", mask=every_source),
]
