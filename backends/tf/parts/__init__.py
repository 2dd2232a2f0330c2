"""The parts of `mha_core.parts` in TensorFlow, each in a file of its name."""
