"""Tests of the parts of `mha_core.parts` in every backend."""
