"""Bugs of the parts of attention, forward and backward: rotary positions and query-key norm."""

ORDER = ("rotary", "positions", "frequencies", "tables", "query_key_norm", "gradients")
"""The order of the modules in `mha bugs`; one that is not named comes last."""
