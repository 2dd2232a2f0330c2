"""What is allowed: bounds on the rounding errors of every stage and gradient, computed from the case."""
