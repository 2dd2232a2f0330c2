"""The probes. Each module of the folders has a tuple PROBES; they run in this order, so that each step is met alone."""

ORDER = ("steps", "calls")
"""The order of the folders."""
