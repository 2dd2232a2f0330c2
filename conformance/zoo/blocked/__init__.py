"""Bugs of attention in blocks of queries and keys."""

ORDER = ("blocks", "gradients")
"""The order of the modules in `mha bugs`; one that is not named comes last."""
