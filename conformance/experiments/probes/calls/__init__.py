"""Probes of what calls may have besides: dropout, several items, other lengths, a past, extremes, gradients."""

ORDER = ("dropout", "batch", "lengths", "past", "extremes", "gradients", "gradients_of_calls", "gradients_of_layers")
"""The order in which the modules run."""
