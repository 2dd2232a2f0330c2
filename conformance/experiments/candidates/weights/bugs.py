"""A bug that makes other weights of the scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.changes.sample import Setting
from conformance.experiments.changes.softmaxes import Scored
from conformance.experiments.measured import around
from conformance.zoo.bug import Bug
from mha_core.reference.state import State, Step

FIX = "Weights are exp(score - maximum of the row) over their sum over the row's allowed keys, and nothing else."

Make = Callable[[Scored], NDArray]


def softmax_bug(slug: str, make: Make, sentence: str, *, excluded: bool = False) -> Bug:
    """A bug that makes other weights of the scores. With `excluded`, excluded keys get what it makes for them too."""

    def change(state: State, beneath: Step) -> Any:
        if not state["scores"].size:  # nothing to normalise
            return beneath(state)

        def softmax(scores: NDArray) -> Any:
            return beneath(replace(state, arrays={**state.arrays, "scores": scores}))

        setting = Setting(state.config, state.sizes)
        scored = Scored(state["scores"], state["allowed"], beneath(state), setting, softmax)
        with any_numbers:
            return scored.kept(make(scored), excluded=excluded)

    return around("weights", f"softmax-{slug}{'-of-all' if excluded else ''}", change, sentence, FIX)
