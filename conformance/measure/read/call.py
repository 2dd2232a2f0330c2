"""Call: one call of the subject, and the model's run of it with another array at one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.designs import resized
from conformance.measure.evidence import Evidence
from conformance.measure.places import Place
from conformance.zoo.bug import DoesNotApply, OnTop, pipelines
from conformance.zoo.rerun import Reads, noted_run, rerun
from conformance.zoo.variants import Finished
from mha_core.reference.state import State, Step


@dataclass(eq=False)
class Call:
    """One call, and the model's run of it.

    Args:
        evidence: has the subject and the model.
        problem: the call.
        place: where another array may stand.

    Attributes:
        own: the model's own array there, float64; None if there is none, or the model has no meaning for the call.
        state: the model's run.
    """

    evidence: Evidence
    problem: Problem
    place: Place
    own: NDArray | None = field(init=False)
    state: State = field(init=False, repr=False)
    _steps: Mapping[str, Step] = field(init=False, repr=False)
    _reads: Reads = field(init=False, repr=False)
    _repeated: State | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.own = None
        runs = _runs.setdefault(self.evidence, {})
        if self.problem not in runs:
            asked, model = self.evidence.asker.rounded(self.problem), self.evidence.model
            try:
                runs[self.problem] = self.evidence.variants.started(asked, model) or _run(asked, pipelines(*model)[0])
            except DoesNotApply:  # the model was measured in other calls
                return
        self.state, _, self._steps, self._reads = runs[self.problem]
        step = self.place.steps[0]
        own = self.state[step] if self.place.is_result else self.place.get(self.state, self._steps[step])
        self.own = None if own is None else np.asarray(own, np.float64)

    @property
    def is_of_items(self) -> bool:
        """Whether the array has a part for each item, so that several arrays can be run as items of one call."""
        return self.place.axes[0] == "item" and not self.place.id.startswith("past")

    def given(self, arrays: NDArray, step: str = "output") -> NDArray:
        """(n, ...): what a later step gives with each of n arrays in the place of the model's own."""
        if not self.is_of_items:
            return np.stack([self._with(self.state, array)[step] for array in arrays])
        count, batch = arrays.shape[:2]
        state, sizes = self.state, self.problem.sizes
        if count > 1 and (batch > 1 or sizes.past_len):  # else the one item is copied by broadcasting
            if self._repeated is None or self._repeated.sizes.batch != count * batch:
                asked = self.evidence.asker.rounded(self.problem)
                more = resized(asked, count * batch, sizes.query_len, sizes.key_len)
                self._repeated = _run(more, self._steps).state
            state = self._repeated
        made = self._with(state, arrays.reshape(-1, *arrays.shape[2:]))[step]
        return np.asarray(made.reshape(count, batch, *made.shape[1:]))

    def _with(self, state: State, array: NDArray) -> State:
        changes = self.place.with_array(array)
        changed: dict[str, Step] = {name: OnTop(self._steps[name], change) for name, change in changes.items()}
        return rerun(state, {**self._steps, **changed}, set(changed), reads=self._reads)[0]


_runs: WeakKeyDictionary[Evidence, dict[Problem, Finished]] = WeakKeyDictionary()


def _run(problem: Problem, steps: Mapping[str, Step]) -> Finished:
    inputs = replace(problem.inputs, cotangent=None)
    state, reads = noted_run(problem.config, problem.weights, inputs, forward=steps, sizes=problem.sizes)
    return Finished(state, {}, steps, reads)
