"""Proposals: faults made of what was read at the places that a probe shows."""
