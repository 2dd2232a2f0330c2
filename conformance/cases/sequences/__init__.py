"""Sequences of calls on one prepared layer: what was asked before must not matter.

Each module has its own in SEQUENCES.
"""

ORDER = ("calls", "layers")
"""The order of the modules in `mha check --list`; one that is not named comes last."""
