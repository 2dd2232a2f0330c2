"""Numbers that are large, small, same-signed or cancelling."""

from __future__ import annotations

from conformance.cases.case import Case
from conformance.cases.parts import lone_open_key, loud_item, prime_config, same_signs, shifted_scores
from mha_core import AttentionConfig


def cases() -> list[Case]:
    """The cases of this topic, in the order of `mha cases`."""
    return [
        Case("weights-x4", "a softmax that loses precision at large scores", prime_config(), weight_scale=4.0),
        Case(
            "weights-x20-inputs-x3",
            "a softmax without its maximum subtracted: exp overflows",
            prime_config(),
            weight_scale=20.0,
            input_scale=3.0,
        ),
        Case("inputs-x0.03", "an absolute constant where a relative one belongs", prime_config(), input_scale=0.03),
        Case(
            "denormal-inputs",
            "numbers below the smallest normal one of float32, which may be flushed to 0 but not blown up",
            prime_config(),
            input_scale=1e-39,
        ),
        Case("scores-shifted", "a maximum clamped at 0", prime_config(), mask=shifted_scores),
        Case("lone-open-key", "a finite fill value instead of exclusion", prime_config(), mask=lone_open_key),
        Case(
            "one-loud-item",
            "a maximum taken over the whole tensor instead of each row",
            prime_config(),
            batch=4,
            change=loud_item,
        ),
        Case(
            "long",
            "errors that pile up in long sums",
            AttentionConfig(11, 1, bias=True, value_head_dim=13, query_dim=17, key_dim=19, value_dim=23, output_dim=29),
            query_len=3,
            key_len=4096,
            change=same_signs,
            expensive=True,
        ),
    ]
