"""Readings: arrays of a stage, recovered from outputs alone by problems whose output is that array, or tells it."""
