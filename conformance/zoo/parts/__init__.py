"""Bugs of the parts of attention, forward and backward.

A module that is named as a field of `mha_core.parts.PARTS` also has BEGINS: how the ids of that part's bugs begin,
behind "gradient-of-" where that stands first.
"""

ORDER = ("rotary", "positions", "frequencies", "tables", "query_key_norm", "gradients")
"""The order of the modules in `mha bugs`; one that is not named comes last."""
