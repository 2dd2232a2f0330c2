"""Equal scores: weights are uniform, so only the weighted sum and the mapping of heads can show."""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
