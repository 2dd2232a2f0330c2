"""The bounds of the parts of `mha_core.parts`, each in a file of its name."""
