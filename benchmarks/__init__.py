"""Time and memory of the backends beside the attention layers that their frameworks ship: `python -m benchmarks`."""
