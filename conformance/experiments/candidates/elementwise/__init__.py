"""Candidates of one function of each number of a step, or of a part of it."""
