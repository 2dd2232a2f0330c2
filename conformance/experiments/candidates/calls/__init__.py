"""Candidates of what calls differ in: several items, other lengths, a past; faults of some places or sizes only."""
