"""Metamorphic relations: properties that two calls must have together, whatever the right answers are."""
