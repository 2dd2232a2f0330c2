"""The parts of `mha_core.parts` in PyTorch, each in a file of its name."""
