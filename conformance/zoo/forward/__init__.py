"""Bugs of the forward pass."""

ORDER = ("projections", "scores", "masks", "positions", "softmax", "precision", "dropout", "heads", "decoding")
"""Where each topic stands in `mha bugs`; one that is not named comes last."""
