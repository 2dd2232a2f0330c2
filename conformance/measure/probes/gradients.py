"""Gradients: placeholder until the backward room is merged."""

PROBES = ()
