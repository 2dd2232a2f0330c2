"""Whether a difference is known: the table of deviations of layers that others wrote."""
