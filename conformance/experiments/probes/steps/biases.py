"""What is added to or bounds the scores: the additive bias, the softcap, other score functions, a given scale."""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
