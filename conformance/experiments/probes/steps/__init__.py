"""Probes of one step after another; those of several items first show what items do to each other."""

ORDER = (
    "one_key",
    "equal_scores",
    "items",
    "masks",
    "mask_items",
    "scores",
    "softmax",
    "scored_items",
    "biases",
    "equal_shapes",
    "masked_scores",
)
"""The order in which the modules run."""
