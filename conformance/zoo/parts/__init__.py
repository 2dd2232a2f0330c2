"""Bugs of the parts of attention, forward and backward.

The module of a part also has BEGINS: field of `mha_core.parts.PARTS` -> how the ids of its bugs begin, behind
"gradient-of-" where that stands first.
"""

ORDER = (
    *("rotary", "positions", "frequencies", "tables", "query_key_norm", "query_scale", "chunked_mask"),
    *("gradients", "clip_qkv", "value_norm"),
)
"""The order of the modules in `mha bugs`; one that is not named comes last."""
