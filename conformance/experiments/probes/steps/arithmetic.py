"""Arithmetic: nothing is isolated here. What is asked first of all, and what is tried everywhere, stands elsewhere.

`behaviour` asks whether equal questions have equal answers and in which precision the subject computes; a rounded
step shows in every probe, so `candidates.rounded` is tried by each of them.
"""

from __future__ import annotations

from conformance.experiments.probe import Probe

PROBES: tuple[Probe, ...] = ()
