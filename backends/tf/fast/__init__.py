"""Attention without an array of all scores, for TensorFlow."""
