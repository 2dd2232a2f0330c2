"""Call: one call of the subject, and the model's run of it with another array in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.candidates.steps import READERS as READERS_OF
from conformance.experiments.designs import resized
from conformance.experiments.view import View
from conformance.zoo.bug import DoesNotApply, pipelines
from conformance.zoo.rerun import Reads, noted_run, rerun
from mha_core import AttentionConfig
from mha_core.errors import SpecError
from mha_core.reference.forward import PROJECTED
from mha_core.reference.state import State, Step

NUMBERS = ("scale", "softcap")
"""Numbers of a layer's config that may be read as arrays of one element."""

READERS: Mapping[str, str] = {
    "score.query.weight": "additive_hidden",
    "score.key.weight": "additive_hidden",
    "score.vector": "unscaled",
    "scale": "similarity",
    "softcap": "capped",
    **{f"{name}.{kind}": step for name, (_, step) in PROJECTED.items() for kind in ("weight", "bias")},
}
"""Parameter, or number of the config -> the step that reads it."""


def number_of(config: AttentionConfig, name: str) -> float | None:
    """One of NUMBERS: the scale that scores are multiplied by, also one that is not given; None if there is none."""
    if name == "scale":
        return config.softmax_scale if config.score == "scaled_dot" else None
    return config.softcap


def with_number(config: AttentionConfig, name: str, number: float) -> AttentionConfig:
    """The config with another of NUMBERS.

    Raises:
        DoesNotApply: it can't be that number.
    """
    given: dict[str, Any] = {name: number}
    try:
        return replace(config, **given)
    except SpecError as error:
        raise DoesNotApply(str(error)) from error


READ: Mapping[str, str] = {"keys read": "keys", "values read": "values"}
"""What each query head reads, repeated from the key heads: (B, H, Lk, width) -> the step."""


@dataclass(eq=False)
class Call:
    """One call of the subject, and the model's run of it, with another array in one place.

    Args:
        view: has the subject and the model.
        problem: the call.
        name: a step, one of READ, a parameter, or one of NUMBERS.
    """

    view: View
    problem: Problem
    name: str
    own: NDArray | None = field(init=False)
    state: State = field(init=False, repr=False)
    _steps: dict[str, Step] = field(init=False, repr=False)
    _reads: Reads = field(init=False, repr=False)

    def __post_init__(self) -> None:
        runs = _runs.setdefault(self.view, {})
        if self.problem not in runs:
            asked = self.view.lab.rounded(self.problem)
            steps, _ = pipelines(*self.view.model)
            runs[self.problem] = (steps, *_run(asked, steps))
        self._steps, self.state, self._reads = runs[self.problem]
        state = self.state
        if self.name in NUMBERS:
            number = number_of(state.config, self.name)
            self.own = None if number is None else np.array([number])
        elif self.name in READ:
            self.own = state.heads_of(READ[self.name])
        else:
            self.own = state.parameters.get(self.name) if self.name in READERS else state[self.name]

    def given(self, arrays: NDArray, step: str = "output") -> NDArray:
        """(n, ...): what a later step gives with each of n arrays in the place of the model's own."""
        if self.name in READERS:
            return np.stack([self._with_parameter(array)[step] for array in arrays])
        count, batch = arrays.shape[:2]
        state, reads = self.state, self._reads
        sizes = self.problem.sizes
        if batch > 1 or sizes.past_len:
            copies = resized(self.view.lab.rounded(self.problem), count * batch, sizes.query_len, sizes.key_len)
            state, reads = _run(copies, self._steps)
        # Else the one item is copied by broadcasting.
        joined = arrays.reshape(-1, *arrays.shape[2:])
        if self.name in READ:
            read = READ[self.name]
            found = state.copy()
            found.arrays[read] = joined
            found, _ = rerun(found, self._steps, set(READERS_OF[read]), changed=True, reads=reads)
        else:
            steps = {**self._steps, self.name: lambda state: joined}
            found, _ = rerun(state, steps, {self.name}, reads=reads)
        made = found[step]
        return np.asarray(made.reshape(count, batch, *made.shape[1:]))

    def _with_parameter(self, array: NDArray) -> State:
        changed = self.state.copy()
        if self.name in NUMBERS:
            changed.config = with_number(changed.config, self.name, float(array[0]))
        else:
            changed.parameters = {**changed.parameters, self.name: array}
        return rerun(changed, self._steps, {READERS[self.name]}, reads=self._reads)[0]


_runs: WeakKeyDictionary[View, dict[Problem, tuple[dict[str, Step], State, Reads]]] = WeakKeyDictionary()


def _run(problem: Problem, steps: dict[str, Step]) -> tuple[State, Reads]:
    return noted_run(problem.config, problem.weights, replace(problem.inputs, cotangent=None), forward=steps)
