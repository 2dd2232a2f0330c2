"""The batch: what items do to each other."""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
