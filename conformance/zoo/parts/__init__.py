"""Bugs of the parts of attention, forward and backward."""

ORDER = (
    *("rotary", "positions", "frequencies", "tables", "query_key_norm", "query_scale", "chunked_mask"),
    *("gradients", "clip_qkv", "value_norm"),
)
"""The order of the modules in `mha bugs`; one that is not named comes last."""
