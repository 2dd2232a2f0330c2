"""The parts of `mha_core.parts` in JAX, each in a file of its name."""
