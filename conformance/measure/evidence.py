"""Evidence: a subject beside one model of it, also with another array at one place of the model."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.kinds.made import Model
from conformance.kinds.places import Place
from conformance.measure.asker import Asker
from conformance.subjects.items import take_items
from conformance.zoo.bug import DoesNotApply, OnTop, pipelines
from conformance.zoo.variants import Reads, Variants, noted_run, rerun
from mha_core.reference.state import State, Step


@dataclass(eq=False)
class Evidence:
    """A subject (run by `asker`), the reference with bugs (run by `variants`), and the bugs found so far (`model`)."""

    asker: Asker
    variants: Variants
    model: Model = ()

    def allowed(self, wanted: NDArray) -> float:
        """Return the absolute error up to which an output counts as equal to `wanted`: a share of max |wanted|."""
        return max(LEFT, ROUNDOFFS * self.asker.unit) * float(np.abs(wanted).max(initial=1e-300))


LEFT, ROUNDOFFS = 1e-9, 2000.0
"""Share of the largest number that may be left, and roundoffs of it in coarser arithmetic."""


@dataclass(eq=False)
class PlacedCall:
    """One call, run by the model (the reference with bugs). The model's array at one place can be replaced by others.

    Args:
        evidence: the subject and the bugs of the model.
        problem: the call.
        place: the array that can be replaced.

    Attributes:
        own: the model's own array at the place, float64; None if there is none, or the model does not fit the call.
        state: the model's run.
    """

    evidence: Evidence
    problem: Problem
    place: Place
    own: NDArray | None = field(init=False, default=None)
    state: State = field(init=False, repr=False)
    _steps: Mapping[str, Step] = field(init=False, repr=False)
    _reads: Reads = field(init=False, repr=False)
    _repeated: State | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        asked, model = self.evidence.asker.rounded(self.problem), self.evidence.model
        try:
            started = self.evidence.variants.started(asked, model)
            if started is None:
                self._steps = pipelines(*model)[0]
                self.state, self._reads = _run(asked, self._steps)
            else:
                self.state, _, self._steps, self._reads = started
        except DoesNotApply:  # the model was measured in other calls
            return
        step = self.place.step
        own = self.state[step] if self.place.is_result else self.place.get(self.state, self._steps[step])
        self.own = None if own is None else np.asarray(own, np.float64)

    @property
    def is_of_items(self) -> bool:
        """Return whether the array has a batch axis, so that several arrays can be run as batch items of one call."""
        return self.place.axes[0] == "item" and not self.place.id.startswith("past")

    def given(self, arrays: NDArray, step: str = "output") -> NDArray:
        """Return (n, ...): the results of `step` in n runs. In run i, arrays[i] replaces the model's own array."""
        if not self.is_of_items:
            return np.stack([self._with(self.state, array)[step] for array in arrays])
        count, batch = arrays.shape[:2]
        state, past = self.state, self.problem.sizes.past_len
        if count > 1 and (batch > 1 or past):  # else the one item is copied by broadcasting
            if self._repeated is None or self._repeated.sizes.batch != count * batch:
                asked = self.evidence.asker.rounded(self.problem)
                items = np.arange(count * batch) % batch
                self._repeated = _run(replace(asked, inputs=take_items(asked.inputs, items)), self._steps)[0]
            state = self._repeated
        made = self._with(state, arrays.reshape(-1, *arrays.shape[2:]))[step]
        return np.asarray(made.reshape(count, batch, *made.shape[1:]))

    def _with(self, state: State, array: NDArray) -> State:
        name = self.place.step
        changed = OnTop(self._steps[name], lambda state, beneath: self.place.put(state, beneath, array))
        return rerun(state, {**self._steps, name: changed}, {name}, reads=self._reads)[0]


def _run(problem: Problem, steps: Mapping[str, Step]) -> tuple[State, Reads]:
    inputs = replace(problem.inputs, cotangent=None)
    return noted_run(problem.config, problem.weights, inputs, forward=steps, sizes=problem.sizes)
