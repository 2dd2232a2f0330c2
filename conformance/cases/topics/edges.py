"""Sizes of one and zero, and values that are not finite."""

import numpy as np

from conformance.cases.parts import allowed_per_head, case, number_in_open, poison_padding, views

TINY = "a size of 1 or 0 is what this case is about"


CASES = [
    case("one-item", "a batch axis squeezed away", batch=1, causal=True),
    case("one-head", "a head axis squeezed away", num_heads=1, causal=True),
    case("one-query", "a query axis squeezed away", query_len=1, mask=allowed_per_head),
    case("one-key", "a key axis squeezed away; a softmax over one key is 1", key_len=1, valid_lens=[1, 0]),
    case("head-dim-1", "a channel axis squeezed away", head_dim=1, causal=True),
    case("no-items", "B = 0", batch=0, causal=True, trivial_mask=TINY),
    case("no-queries", "Lq = 0", query_len=0, causal=True, trivial_mask=TINY),
    case("no-keys", "Lk = 0: every row is empty", key_len=0, causal=True, trivial_mask=TINY),
    case("views", "strides ignored, or a caller's array written to", change=views),
    case("nan-in-padding", "padding that leaks: 0 * NaN is NaN", valid_lens=[4, 0], change=poison_padding),
    case(
        "nan-in-disallowed",
        "padding given through allowed instead of valid_lens",
        allowed=[True, True, False, True, True, False, True],
        causal=True,
        change=poison_padding,
    ),
    case(
        "nan-in-open-key",
        "a NaN hidden by nan_to_num, or spread to other items",
        causal=True,
        change=number_in_open("keys", np.nan),
    ),
    case(
        "infinity-in-open-value",
        "an infinity clipped to a large number",
        causal=True,
        change=number_in_open("values", np.inf),
    ),
]
