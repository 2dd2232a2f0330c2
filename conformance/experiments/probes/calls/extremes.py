"""Extremes: padding, rows without keys, NaN, infinities, huge numbers, empty sizes."""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
