"""Bugs of the backward pass."""
