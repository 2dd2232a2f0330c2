"""Masks with equal scores: which keys have a weight, for each source alone and with each other."""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
