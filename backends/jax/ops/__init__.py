"""The functions that `layers.py` is written in: the stages of the definition in JAX."""
