"""Tests of mha.tolerances."""
