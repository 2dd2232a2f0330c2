"""Check that a live layer computes what its parameters mean: probes, and the error that rounding allows."""
