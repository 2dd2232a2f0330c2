"""Every source of a mask, and several together."""

from __future__ import annotations

import numpy as np

from conformance.cases.case import Case
from conformance.cases.parts import (
    allowed_per_head,
    allowed_per_item,
    bias_per_head,
    bias_that_excludes,
    every_source,
    fixed,
    prime_config,
)


def cases() -> list[Case]:
    """The cases of this topic, in the order of `mha cases`."""
    return [
        Case(
            "valid-lens",
            "lengths off by one, ignored, or counted from the right",
            prime_config(),
            mask=fixed(valid_lens=np.array([3, 6])),
        ),
        Case(
            "valid-lens-per-query",
            "(B, Lq) lengths read as (B,)",
            prime_config(),
            mask=fixed(valid_lens=np.array([[1, 2, 3, 4, 5], [7, 0, 6, 2, 3]])),
        ),
        Case("causal", "the diagonal off by one, keys from the future", prime_config(), mask=fixed(causal=True)),
        Case(
            "causal-more-queries",
            "top-left alignment read as bottom-right when Lq > Lk",
            prime_config(),
            query_len=8,
            key_len=5,
            mask=fixed(causal=True),
        ),
        Case(
            "causal-bottom-right",
            "query_offset ignored, or with the wrong sign",
            prime_config(),
            mask=fixed(causal=True, query_offset=2),
        ),
        Case(
            "causal-bottom-right-more-queries",
            "rows before the first key, which have nothing to attend to",
            prime_config(),
            query_len=8,
            key_len=5,
            mask=fixed(causal=True, query_offset=-3),
        ),
        Case(
            "causal-padding",
            "one of two masks dropped when both are given",
            prime_config(),
            mask=fixed(valid_lens=np.array([2, 4]), causal=True),
        ),
        Case(
            "causal-offset-per-item",
            "one query_offset applied to the whole batch",
            prime_config(),
            mask=fixed(causal=True, query_offset=np.array([1, -2])),
        ),
        Case("window", "a window off by one, or one-sided", prime_config(), mask=fixed(window=(2, 1))),
        Case(
            "window-causal",
            "a window that forgets the offset, or replaces the causal mask",
            prime_config(),
            mask=fixed(window=(1, None), causal=True, query_offset=2),
        ),
        Case("allowed", "polarity: True read as masked", prime_config(), mask=allowed_per_item),
        Case("allowed-per-head", "a mask per head shared by all heads", prime_config(), mask=allowed_per_head),
        Case(
            "bias-per-head", "an additive bias scaled, dropped, or shared by heads", prime_config(), mask=bias_per_head
        ),
        Case(
            "bias-excludes",
            "-inf in the bias that turns into NaN, forward or backward",
            prime_config(),
            mask=bias_that_excludes,
        ),
        Case("every-source", "sources that are not combined with AND", prime_config(), mask=every_source),
    ]
