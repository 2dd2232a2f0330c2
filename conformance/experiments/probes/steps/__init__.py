"""Probes of one step after another; those of several items stand behind those that show the same in one."""

ORDER = (
    "one_key",
    "equal_scores",
    "items",
    "masks",
    "mask_items",
    "scores",
    "softmax",
    "biases",
    "scored_items",
    "equal_shapes",
    "masked_scores",
)
"""The order in which the modules run."""
