"""Settings that a layer may have, that no array of it shows, and that calls could not have shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from conformance.cases.problem import Problem
from conformance.zoo.shows import Shows
from mha_core.features import FEATURES, Feature
from mha_core.reference import pipeline as reference

MOST_TRIED = 8
"""Most calls that faint settings are tried on."""


def beyond(problems: Sequence[Problem], looked: Sequence[Shows]) -> tuple[str, ...]:
    """Return in words the settings that neither an array nor these calls show.

    Args:
        problems: every call.
        looked: the calls on which settings are tried.
    """
    found = []
    for feature in FEATURES:
        without = [one for one in looked if not feature.present(one.wanted.problem.config, None)]
        hidden = _hidden(feature, without[:MOST_TRIED])
        if hidden is not None:
            found.append(f"{feature.words} of {hidden:g} or more")
    lengths = {problem.inputs.check(problem.config).key_len for problem in problems}
    if len(lengths) == 1:
        found.append(f"a scale that depends on the number of keys (here always {max(lengths)})")
    return (*found, f"a window or positions beyond {max(lengths)} keys")


def _hidden(feature: Feature, looked: Sequence[Shows]) -> float | None:
    """The last of the feature's `faint` values up to which none shows; None if all do, or no call is without it."""
    hidden = None
    for value in feature.faint if looked else ():
        for one in looked:
            given = one.wanted.problem
            setting: dict[str, Any] = dict.fromkeys(feature.plain, value)
            config = replace(given.config, **setting)
            state = reference.run_state(config, given.weights, given.inputs)
            if one.first_stage(state) is not None:
                return hidden
        hidden = value
    return hidden
