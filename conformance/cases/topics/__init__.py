"""The cases by topic: each module has its own in CASES, in the order of `mha check --list`."""

ORDER = (
    *("trained", "sizes", "masks", "scores", "square", "magnitudes", "edges", "decoding", "blocks", "combinations"),
    *("query_key_norm", "rotary"),
)
"""The order of the modules in `mha check --list`; one that is not named comes last."""
