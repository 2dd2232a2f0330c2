"""Lengths: parts of the queries or keys that are treated apart, as blocks are."""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
