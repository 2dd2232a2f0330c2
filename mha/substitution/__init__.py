"""A whole port judged by substitution: the original's module, run on what the port's module was given."""
