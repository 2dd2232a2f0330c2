"""Weights out of one file into another, and what is said of them."""
