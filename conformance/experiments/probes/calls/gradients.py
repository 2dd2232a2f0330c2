"""Gradients, by chosen cotangents, from the output backwards."""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
