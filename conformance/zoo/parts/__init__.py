"""Bugs of the parts of attention, forward and backward: rotary positions, norm, query scale and chunked mask."""

ORDER = ("rotary", "positions", "frequencies", "tables", "query_key_norm", "query_scale", "chunked_mask", "gradients")
"""The order of the modules in `mha bugs`; one that is not named comes last."""
