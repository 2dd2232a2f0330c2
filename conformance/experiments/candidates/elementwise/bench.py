"""A bench: a problem in which one step's numbers at a time are replaced, and how far the output is off then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.changes.elements.values import Elementwise
from conformance.experiments.measured import on_step
from conformance.experiments.view import View
from conformance.zoo.bug import Bug, pipelines
from conformance.zoo.rerun import Reads, noted_run, rerun
from mha_core.reference.state import State, Step

FIX = "Leave the numbers of this step as the definition makes them."

INSIDE = "inside"
"""What stands under the tanh of the additive score; a place of its own, not a step."""

NAMES: dict[str, str] = {
    "output": "Outputs",
    "merged": "Merged heads",
    "heads": "Heads",
    "kept_weights": "Weights after dropout",
    "weights": "Weights",
    "values": "Values",
    "new_values": "Values, before the past is joined,",
    "value_inputs": "The values' inputs",
    "scores": "Scores",
    "capped": "Scores before the bias",
    "similarity": "Scaled scores",
    "unscaled": "Scores before the scale",
    INSIDE: "The numbers under the additive score's tanh",
    "additive_hidden": "The additive score's hidden units",
    "keys": "Keys",
    "new_keys": "Keys, before the past is joined,",
    "queries": "Queries",
    "key_inputs": "The keys' inputs",
    "query_inputs": "The queries' inputs",
}
"""Step -> its name at the beginning of a sentence; the latest steps first."""

CLOSE = 1e-9
"""Of the largest output, what may be left; more in coarser arithmetic."""

PROMISING = 0.7
"""Of the difference, what the best number of a grid may leave."""


class Fitted(NamedTuple):
    """One function at one step: slug, words to follow the step's name, the function."""

    step: str
    slug: str
    words: str
    of: Elementwise

    def bug(self) -> Bug:
        """As a bug that can be run."""
        return on_step(
            "additive_hidden" if self.step == INSIDE else self.step,
            f"{self.step}-f-{self.slug}",
            lambda state, array: changed(self.step, array, self.of),
            f"{NAMES[self.step]} are {self.words}.",
            FIX,
        )


def changed(step: str, array: NDArray | None, function: Elementwise) -> NDArray | None:
    """The function of a step's numbers; of those under the tanh where the step is INSIDE. None where there are none."""
    if array is None:
        return None
    with any_numbers:
        if step == INSIDE:
            return np.tanh(function(np.arctanh(array.clip(-1.0 + 1e-16, 1.0 - 1e-16))))
        return function(array)


@dataclass(eq=False)
class Bench:
    """A problem, the subject's output, and the model's steps, of which one at a time is replaced."""

    view: View
    problem: Problem
    got: NDArray = field(init=False)
    state: State = field(init=False)
    steps: Mapping[str, Step] = field(init=False)
    reads: Reads = field(init=False, repr=False)

    def __post_init__(self) -> None:
        problem = self.view.lab.rounded(self.problem)
        got = self.view.got(self.problem)
        assert got is not None
        self.got = got
        self.steps, _ = pipelines(*self.view.model)
        inputs = replace(problem.inputs, cotangent=None)
        self.state, self.reads = noted_run(problem.config, problem.weights, inputs, forward=self.steps)

    def array(self, step: str) -> NDArray | None:
        """The numbers at a step, flat."""
        array = self.state["additive_hidden" if step == INSIDE else step]
        if array is None or not array.size:
            return None
        found: NDArray = np.arctanh(array) if step == INSIDE else array
        return found.ravel()

    def off(self, step: str, function: Elementwise) -> NDArray:
        """The model's output less the subject's, with a function at a step; NaN where there is none."""
        real = "additive_hidden" if step == INSIDE else step
        array = changed(step, self.state[real], function)
        found, _ = rerun(self.state, {**self.steps, real: lambda state: array}, {real}, reads=self.reads)
        made = found["output"]
        return np.asarray(made - self.got).ravel() if made.shape == self.got.shape else np.full(1, np.nan)

    @property
    def base(self) -> float:
        """How far off the model is."""
        return size_of(self.off("output", lambda x: x))

    @property
    def enough(self) -> float:
        return max(CLOSE, 2e3 * self.view.lab.unit) * float(np.abs(self.got).max(initial=1e-300))

    def is_given_by(self, step: str, function: Elementwise) -> bool:
        return bool(np.abs(self.off(step, function)).max(initial=0.0) <= self.enough)


def size_of(vector: NDArray) -> float:
    """The root mean square; infinite where nothing can be said, so that no such number is the best of a grid."""
    size = float(np.sqrt(np.mean(vector * vector))) if vector.size else np.inf
    return size if np.isfinite(size) else np.inf
