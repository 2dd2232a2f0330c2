"""Rules: orders of an axis and sets of its indices, each for every length."""
