"""The steps of parts of `mha_core.parts`, forward and backward, each part in a file of its name."""
