"""Bugs of the backward pass."""

ORDER = ("attention", "parameters")
"""Where each topic stands in `mha bugs`; one that is not named comes last."""
