"""Bugs of the parts of attention, forward and backward.

A module with the name of a field in `mha_core.parts.PARTS` also has BEGINS: prefixes of the ids of the part's bugs. In
ids that begin with "gradient-of-", the prefix follows it.
"""

ORDER = ("rotary", "positions", "frequencies", "tables", "query_key_norm", "gradients")
"""The order of the modules in `mha bugs`; one that is not named comes last."""
