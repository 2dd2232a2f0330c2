"""Bugs of attention in blocks of queries and keys."""

ORDER = ("queries", "keys", "gradients")
"""Where each topic stands in `mha bugs`; one that is not named comes last."""
