"""Bugs of the parts of attention, forward and backward: rotary positions, query-key norm and query scale."""

ORDER = ("rotary", "positions", "frequencies", "tables", "query_key_norm", "query_scale", "gradients")
"""The order of the modules in `mha bugs`; one that is not named comes last."""
