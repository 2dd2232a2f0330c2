"""Sizes of one and zero, and values that are not finite."""

from __future__ import annotations

import numpy as np

from conformance.cases.case import Case
from conformance.cases.parts import (
    allowed_per_head,
    fixed,
    infinity_in_open_value,
    nan_in_open_key,
    poison_padding,
    prime_config,
    views,
)


def cases() -> list[Case]:
    """The cases of this topic, in the order of `mha cases`."""
    tiny = "a size of 1 or 0 is what this case is about"
    return [
        Case("one-item", "a batch axis squeezed away", prime_config(), batch=1, mask=fixed(causal=True)),
        Case("one-head", "a head axis squeezed away", prime_config(num_heads=1, bias=True), mask=fixed(causal=True)),
        Case("one-query", "a query axis squeezed away", prime_config(), query_len=1, mask=allowed_per_head),
        Case(
            "one-key",
            "a key axis squeezed away; a softmax over one key is 1",
            prime_config(),
            key_len=1,
            mask=fixed(valid_lens=np.array([1, 0])),
        ),
        Case("head-dim-1", "a channel axis squeezed away", prime_config(head_dim=1), mask=fixed(causal=True)),
        Case("no-items", "B = 0", prime_config(), batch=0, mask=fixed(causal=True), trivial_mask=tiny),
        Case("no-queries", "Lq = 0", prime_config(), query_len=0, mask=fixed(causal=True), trivial_mask=tiny),
        Case(
            "no-keys",
            "Lk = 0: every row is empty",
            prime_config(),
            key_len=0,
            mask=fixed(causal=True),
            trivial_mask=tiny,
        ),
        Case("views", "strides ignored, or a caller's array written to", prime_config(), change=views),
        Case(
            "nan-in-padding",
            "padding that leaks: 0 * NaN is NaN",
            prime_config(),
            mask=fixed(valid_lens=np.array([4, 0])),
            change=poison_padding,
        ),
        Case(
            "nan-in-disallowed",
            "padding given through allowed instead of valid_lens",
            prime_config(),
            mask=fixed(allowed=np.array([True, True, False, True, True, False, True]), causal=True),
            change=poison_padding,
        ),
        Case(
            "nan-in-open-key",
            "a NaN hidden by nan_to_num, or spread to other items",
            prime_config(),
            mask=fixed(causal=True),
            change=nan_in_open_key,
        ),
        Case(
            "infinity-in-open-value",
            "an infinity clipped to a large number",
            prime_config(),
            mask=fixed(causal=True),
            change=infinity_in_open_value,
        ),
    ]
