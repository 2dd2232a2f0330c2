"""Which bugs one problem shows: the definition's run of it, run again with a bug and held against the right answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.judging.expected import Expected
from conformance.zoo.bug import GRADIENTS, Bug, pipelines, rounded
from conformance.zoo.rerun import Reads, noted_run, rerun
from mha_core import STAGES, Trace
from mha_core.reference import pipeline as reference
from mha_core.reference.state import State


@dataclass(frozen=True, eq=False)
class Shows:
    """One problem in one dtype, of which some stages are seen.

    Args:
        wanted: the right result with its bounds.
        dtype: what a layer computes in.
        seen: the names of the stages that are seen, in their order.
        right: the reference's run, and `reads`: what its steps read.
    """

    wanted: Expected
    dtype: str
    seen: Sequence[str]
    right: State
    reads: Reads

    @classmethod
    def of(cls, wanted: Expected, dtype: str, seen: Sequence[str] = STAGES) -> Shows:
        """With the reference's run of the problem, which is made here."""
        problem = wanted.problem
        return cls(wanted, dtype, seen, *noted_run(problem.config, problem.weights, problem.inputs))

    def forward(self, bug: Bug) -> tuple[State, bool]:
        """The forward run with a bug, and whether it has another array. DoesNotApply where it can't be made."""
        return rerun(self.right, pipelines(bug)[0], bug.forward, reads=self.reads)

    def first_stage(self, state: State) -> str | None:
        """The first stage that is seen and leaves its allowed error in this run, rounded to the dtype."""
        others = (name for name in self.seen if state[name] is not self.right[name])  # the right array is within it
        return next((name for name in others if self._differs(Trace(**{name: state[name]}))), None)

    def first_difference(self, bug: Bug) -> str | None:
        """The first stage of the bug's run that leaves its allowed error, "gradients", or None.

        Raises DoesNotApply where the bug can't be made.
        """
        state, forward_changed = self.forward(bug)
        stage = self.first_stage(state) if forward_changed else None
        if stage is not None or self.right.inputs.cotangent is None:
            return stage
        backward, changed = pipelines(bug)[1], forward_changed
        state, changed = rerun(state, backward, bug.backward, changed=changed, since=self.right, reads=self.reads)
        return GRADIENTS if changed and self._differs(Trace(gradients=reference.trace_of(state).gradients)) else None

    def _differs(self, trace: Trace) -> bool:
        return bool(self.wanted.judge(rounded(trace, self.dtype), self.dtype)[1])
