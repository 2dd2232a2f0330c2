"""Hypotheses: possible readings of a file's arrays as one attention layer."""
