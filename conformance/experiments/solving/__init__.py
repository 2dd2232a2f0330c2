"""Solving: the array at any place with which a model gives what the subject gives."""
