"""The softmax: how weights follow from differences of scores, small and large, and what rows sum to."""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
