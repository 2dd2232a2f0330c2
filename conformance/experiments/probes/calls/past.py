"""A past of keys and values, inputs split into heads, and layers without projections."""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
