"""Bounds on the rounding errors of every stage and gradient, computed from the case: the tolerances of the suite."""
