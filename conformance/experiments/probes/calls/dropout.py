"""Dropout with a given keep-mask."""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
