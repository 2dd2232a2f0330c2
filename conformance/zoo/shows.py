"""Bugs that one problem shows: the reference runs it with a bug, and the result is compared with the right answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

from numpy.typing import NDArray

from conformance.judging.expected import Expected
from conformance.zoo.bug import GRADIENTS, Bug, pipelines, rounded_array
from conformance.zoo.variants import Reads, noted_run, rerun
from mha_core import STAGES
from mha_core.reference.backward import collect_gradients
from mha_core.reference.state import State
from mha_core.stages import GRADIENT

_pipelines = lru_cache(maxsize=1024)(pipelines)
"""The pipelines of one bug, which are the same in every problem."""


@dataclass(frozen=True, eq=False)
class Shows:
    """A test of which bugs show in one problem: which put a stage that the layer returns outside its error bound.

    Args:
        wanted: the right result with its error bounds.
        dtype: the dtype in which the layer computes.
        seen: the names of the stages that the layer returns, in their order.
        right: the State of the reference's run, without a bug.
        reads: step -> names of the arrays that the step read in this run.

    Attributes:
        inert: the bugs that were looked at and change no stage.
    """

    wanted: Expected
    dtype: str
    seen: Sequence[str]
    right: State
    reads: Reads
    inert: set[Bug] = field(default_factory=set)

    @classmethod
    def of(cls, wanted: Expected, dtype: str, seen: Sequence[str] = STAGES) -> Self:
        """Return a Shows with the reference's run of the problem."""
        problem = wanted.problem
        return cls(wanted, dtype, seen, *noted_run(problem.config, problem.weights, problem.inputs))

    def forward(self, bug: Bug) -> tuple[State, bool]:
        """Return (forward run with a bug, whether any array differs). Raises DoesNotApply if the bug can't be made."""
        return rerun(self.right, _pipelines(bug)[0], bug.forward, reads=self.reads)

    def first_stage(self, state: State) -> str | None:
        """Return the first of the stages `self.seen` that is wrong in the run `state`; None if all are right."""
        return next((name for name in self.seen if self._leaves(name, state[name], self.right[name])), None)

    def first_difference(self, bug: Bug) -> str | None:
        """Return the first stage that the bug makes wrong; "gradients" if only gradients are wrong; None if nothing is.

        Raises DoesNotApply where the bug can't be made.
        """
        state, changed = self.forward(bug)
        if not changed:
            self.inert.add(bug)
        stage = self.first_stage(state) if changed else None
        if stage is not None or self.right.inputs.cotangent is None:
            return stage
        backward = _pipelines(bug)[1]
        state, changed = rerun(state, backward, bug.backward, changed=changed, since=self.right, reads=self.reads)
        return GRADIENTS if changed and self._gradients_differ(state) else None

    def _gradients_differ(self, state: State) -> bool:
        made, right = collect_gradients(state), collect_gradients(self.right)
        return any(name not in made or self._leaves(f"{GRADIENT}{name}", made[name], right[name]) for name in right)

    def _leaves(self, name: str, array: NDArray, right: NDArray) -> bool:
        """Whether an array, rounded to the dtype, leaves its allowed error; the right one does not."""
        return array is not right and not self.wanted.allows(name, rounded_array(array, self.dtype), self.dtype)
