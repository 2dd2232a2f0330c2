"""Experiments: measure what a black box does, step by step, by inputs and weights that isolate each (see `search`)."""
