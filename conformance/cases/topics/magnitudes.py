"""Numbers that are large, small, same-signed or cancelling."""

from conformance.cases.parts import case, lone_open_key, loud_item, same_signs, shifted_scores

CASES = [
    case("weights-x4", "a softmax that loses precision at large scores", weight_scale=4.0),
    case(
        "weights-x20-inputs-x3",
        "a softmax without its maximum subtracted: exp overflows",
        weight_scale=20.0,
        input_scale=3.0,
    ),
    case("inputs-x0.03", "an absolute constant where a relative one belongs", input_scale=0.03),
    case(
        "denormal-inputs",
        "numbers below the smallest normal one of float32, which may be flushed to 0 but not blown up",
        input_scale=1e-39,
    ),
    case("scores-shifted", "a maximum clamped at 0", mask=shifted_scores),
    case("lone-open-key", "a finite fill value instead of exclusion", mask=lone_open_key),
    case("one-loud-item", "a maximum taken over the whole tensor instead of each row", batch=4, change=loud_item),
    case(
        "long",
        "errors that pile up in long sums",
        embed_dim=11,
        num_heads=1,
        query_len=3,
        key_len=4096,
        change=same_signs,
        expensive=True,
    ),
]
