"""Parts of attention in problems that are drawn: what there is to choose, and what becomes of it; a file each.

A module has

    CHOICES   choice -> its options, as a `conformance.cases.choices.Space` has them. A name without a dot says whether
              there is the part
    END       the end of the names of the numbered cases that first had the part; a part that is new has an end that
              is new
    chosen    (ask) -> the fields of a config that are chosen
    given     (inputs, made, sizes) -> the inputs with what the call says of the part; where it says something
"""

ORDER = ("query_scale", "chunked_mask", "clip_qkv", "value_norm")
"""The order in which they are asked for; one that is not named comes last."""
