"""Masks with generic scores: what excluded keys do to the others."""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
