"""Whether a live layer computes what its parameters say: probes, and what rounding explains."""
