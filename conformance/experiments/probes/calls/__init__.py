"""Probes of what calls may have besides: dropout, several items, other lengths, a past, extremes, gradients."""

ORDER = ("dropout", "batch", "lengths", "past", "extremes", "gradients")
"""The order in which the modules run."""
