"""The cases of parts of attention, each part in a file of its name."""

ORDER = ("query_key_norm", "rotary", "query_scale", "chunked_mask", "clip_qkv", "value_norm")
"""The order of the modules in `mha check --list`; one that is not named comes last."""
