"""Settings that a layer may have, that no array of it shows, and that calls could not have shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conformance.cases.problem import Problem
from conformance.zoo.shows import Shows
from mha_core.reference import pipeline as reference

SOFTCAPS = (1000.0, 300.0, 100.0, 50.0, 30.0, 20.0, 10.0, 5.0, 2.0, 1.0)
"""Softcaps that are tried, the largest first, which shows least; 50 and 30 are those of public models."""

MOST_TRIED = 8
"""Most calls that they are tried on."""


def beyond(problems: Sequence[Problem], looked: Sequence[Shows]) -> tuple[str, ...]:
    """The settings in words.

    Args:
        problems: every call.
        looked: those that settings are tried on.
    """
    found = []
    hidden = _hidden_softcap([one for one in looked if one.wanted.problem.config.softcap is None][:MOST_TRIED])
    if hidden is not None:
        found.append(f"a softcap of {hidden:g} or more")
    lengths = {problem.inputs.check(problem.config).key_len for problem in problems}
    if len(lengths) == 1:
        found.append(f"a scale that depends on the number of keys (here always {max(lengths)})")
    return (*found, f"a window, a chunk or positions beyond {max(lengths)} keys")


def _hidden_softcap(looked: Sequence[Shows]) -> float | None:
    """The least of SOFTCAPS from which on none shows; None if all do, or no call is without a softcap."""
    hidden = None
    for softcap in SOFTCAPS if looked else ():
        for one in looked:
            given = one.wanted.problem
            state = reference.run_state(replace(given.config, softcap=softcap), given.weights, given.inputs)
            if one.first_stage(state) is not None:
                return hidden
        hidden = softcap
    return hidden
