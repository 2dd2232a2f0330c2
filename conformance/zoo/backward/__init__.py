"""Bugs of the backward pass."""

ORDER = ("attention", "parameters")
"""The order of the modules in `mha bugs`; one that is not named comes last."""
