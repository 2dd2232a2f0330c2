"""Bugs of the forward pass."""

ORDER = ("projections", "scores", "masks", "softmax", "precision", "dropout", "heads", "decoding")
"""The order of the modules in `mha bugs`; one that is not named comes last."""
