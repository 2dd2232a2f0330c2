"""Probes of one step after another, on calls of one item."""

ORDER = ("arithmetic", "one_key", "equal_scores", "masks", "scores", "softmax", "biases", "masked_scores")
"""The order in which the modules run."""
