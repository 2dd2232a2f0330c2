"""Bugs of the forward pass."""
