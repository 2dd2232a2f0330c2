"""Arithmetic: the unit roundoff that is seen, and whether equal questions have equal answers."""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
