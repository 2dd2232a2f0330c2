"""The parts of `mha_core.parts` in MXNet, each in a file of its name."""
