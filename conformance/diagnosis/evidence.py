"""Evidence: how well hypotheses reproduce the answers of a subject, case by case.

A hypothesis is the reference with some bugs of the zoo in it. It fits a case *whole* if it gives every array that the
subject shows. It *explains* the case if it gives what matters there: the output, where that is wrong. Where stages are
visible, each of them is also held against what the hypothesis makes of the subject's own stages before it: a harmless
difference early on (padding that is not zeroed, say) then does not hide the bug behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.bounds.precision import UNIT_ROUNDOFF, Precision
from conformance.diagnosis.observations import Observation, Runs
from conformance.judging.compare import worst
from conformance.judging.expected import expected
from conformance.judging.near import Nearness
from conformance.measure.behaviour import narrower
from conformance.subjects.subject import Subject
from conformance.zoo.bug import Bug, DoesNotApply, pipelines
from mha_core import STAGES
from mha_core.reference import pipeline as reference
from mha_core.reference.forward import FORWARD, PART_OF
from mha_core.reference.state import State
from mha_core.stages import is_gradient

FIRST_STAGE = 0.5
"""Credit for a case in which a hypothesis explains the first wrong stage but not the output."""


_OF_THE_INPUTS = ("query_inputs", "key_inputs", "value_inputs")
"""Steps that read the inputs alone; a bug of any stage may read what they give."""

_ORDER = {name: position for position, name in enumerate(FORWARD)}


@dataclass(frozen=True)
class Miss:
    """A case that a hypothesis does not explain, with the first array that shows it, in words."""

    case: str
    array: str
    message: str


class Evidence:
    """How well hypotheses fit each case of one subject.

    Args:
        runs: runs hypotheses.
        dtype: the subject's dtype.
        inside: the dtype in which it really computes, if that is another; the bounds are then those of this dtype.
    """

    def __init__(self, runs: Runs, dtype: str, inside: str | None = None) -> None:
        self.runs = runs
        self.inside = inside
        self.nearness = Nearness.of(UNIT_ROUNDOFF[inside or dtype], inside=inside is not None)
        self.wrong: Callable[[Observation], tuple[str, ...]] = cache(self._wrong)
        """The names of the arrays that are wrong in a case, in their order; empty if it passes."""
        self.whole: Callable[[Observation, tuple[Bug, ...]], bool] = cache(self._whole)
        """Whether the reference with these bugs gives all arrays that the subject exposes in a case."""
        self.credit: Callable[[Observation, tuple[Bug, ...]], float] = cache(self._credit)
        """1.0 if these bugs explain a case, FIRST_STAGE if they explain its first wrong stage alone, else 0.0."""
        self._fits: Callable[[Observation, str, tuple[Bug, ...]], bool] = cache(self._fits_with)
        self._start: Callable[[Observation], State] = cache(_start)

    def _wrong(self, observation: Observation) -> tuple[str, ...]:
        if self.inside is None:
            return tuple(mismatch.stage for mismatch in observation.mismatches)
        right = observation.wanted.trace.arrays()
        return tuple(
            name for name, array in observation.arrays.items() if not self.close(observation, name, right[name])
        )

    def _whole(self, observation: Observation, bugs: tuple[Bug, ...]) -> bool:
        arrays = self.runs.arrays(observation, bugs)
        if bugs and self.runs.is_unchanged(observation, arrays):
            return self.whole(observation, ())
        return self.alike(observation, arrays, observation.arrays)

    def _credit(self, observation: Observation, bugs: tuple[Bug, ...]) -> float:
        if self.whole(observation, bugs):
            return 1.0
        wrong = self.wrong(observation)
        arrays = self.runs.arrays(observation, bugs)
        if arrays is None:
            return 0.0 if wrong else 1.0  # where a bug can't be made, a right answer says nothing against it
        if len(observation.arrays) == 1:
            return 0.0
        gradients = [name for name in observation.arrays if is_gradient(name)]
        if not wrong:
            decisive = ["output", *gradients]
        elif "output" in wrong:
            decisive = ["output"]
        else:  # a wrong stage that does not reach the output; or all stages are right, and gradients count
            decisive = [wrong[0]] if wrong[0] in STAGES else gradients
        if self._are_close(observation, decisive, arrays):
            return 1.0
        if not wrong or wrong[0] not in STAGES or not self.fits_step(observation, wrong[0], bugs):
            return 0.0
        every = "output" not in wrong or not self.wrong_steps(observation, bugs)
        return 1.0 if every else FIRST_STAGE

    # Stage by stage, each given the subject's own stages before it --------------------------------------

    def wrong_steps(self, observation: Observation, bugs: tuple[Bug, ...]) -> list[str]:
        """The exposed stages that these bugs do not give when they start from the subject's own earlier stages."""
        exposed = (name for name in observation.arrays if name in STAGES)
        return [name for name in exposed if not self.fits_step(observation, name, bugs)]

    def fits_step(self, observation: Observation, stage: str, bugs: tuple[Bug, ...]) -> bool:
        """Whether these bugs, starting from the subject's own earlier stages, give its array of this stage."""
        return self._fits(observation, stage, tuple(bug for bug in bugs if self.touches(observation, stage, bug)))

    def _fits_with(self, observation: Observation, stage: str, bugs: tuple[Bug, ...]) -> bool:
        made = self._step(observation, stage, bugs)
        return made is not None and self.close(observation, stage, made)

    def touches(self, observation: Observation, stage: str, bug: Bug) -> bool:
        """Whether the bug is in the step of this stage, or in an earlier step that the subject does not expose."""
        last = _ORDER[stage]
        shown_in = (PART_OF.get(step, step) for step in bug.forward)
        return any(name == stage or (_ORDER[name] < last and name not in observation.arrays) for name in shown_in)

    def _step(self, observation: Observation, stage: str, bugs: tuple[Bug, ...]) -> NDArray | None:
        """The array of this stage with these bugs; None where they can't be put in."""
        state = replace(self._start(observation), arrays={})
        with any_numbers:
            for name, step in pipelines(*bugs)[0].items():
                part_of = PART_OF.get(name, name)
                own = _seen_before(observation, part_of, stage)
                if own is None or part_of == "scores" or name in _OF_THE_INPUTS:
                    try:
                        state.arrays[name] = step(state)
                    except DoesNotApply:
                        return None
                if name == stage:
                    return state.arrays[name]
                if own is None or name != part_of:
                    continue
                if name == "scores":
                    # Scores count where attention is allowed; elsewhere a layer may hold anything.
                    state.arrays[name] = np.where(observation.wanted.where, own, state.arrays[name])
                else:
                    state.arrays[name] = own
        raise AssertionError(f"{stage} is no step")  # unreachable

    # Comparing ------------------------------------------------------------------------------------

    def miss(self, observation: Observation, bugs: tuple[Bug, ...]) -> Miss:
        """The first array by which these bugs do not explain this case: the output, or a stage or gradient."""
        arrays = self.runs.arrays(observation, bugs)
        if arrays is None:
            return Miss(observation.case.id, "output", "where it cannot be made")
        names = sorted(observation.arrays, key=lambda name: name != "output")
        name = next(name for name in names if name not in arrays or not self.close(observation, name, arrays[name]))
        return Miss(observation.case.id, name, _difference(name, observation.arrays[name], arrays.get(name)))

    def others(self, observation: Observation, bugs: tuple[Bug, ...]) -> list[str]:
        """The names of arrays that these bugs give differently, in a case that they explain."""
        arrays = self.runs.arrays(observation, bugs)
        if arrays is None or self.whole(observation, bugs):
            return []
        return [name for name in observation.arrays if not self._are_close(observation, [name], arrays)]

    def changes(self, observation: Observation, bug: Bug) -> bool:
        """Whether a bug changes an array that the subject exposes, or can't be made here."""
        arrays = self.runs.arrays(observation, (bug,))
        if self.runs.is_unchanged(observation, arrays):
            return False
        return not self.alike(observation, arrays, observation.wanted.trace.arrays())

    def alike(
        self, observation: Observation, arrays: Mapping[str, NDArray] | None, others: Mapping[str, NDArray]
    ) -> bool:
        """Whether two runs agree in all arrays that the subject exposes."""
        return arrays is not None and all(
            name in arrays and self.close(observation, name, arrays[name], others[name]) for name in observation.arrays
        )

    def _are_close(self, observation: Observation, names: Sequence[str], arrays: Mapping[str, NDArray]) -> bool:
        return all(name in arrays and self.close(observation, name, arrays[name]) for name in names)

    def close(self, observation: Observation, name: str, array: NDArray, other: NDArray | None = None) -> bool:
        """Whether two arrays of one name are equal within rounding; the default for `other` is the subject's array."""
        other = observation.arrays[name] if other is None else other
        counts = observation.wanted.where if name == "scores" else None
        return self.nearness.near(array, other, self._bound(observation, name), counts)

    def _bound(self, observation: Observation, name: str) -> NDArray:
        if self.inside is None:
            return observation.wanted.allowed_error[name]
        return expected(observation.case, Precision.of(self.inside)).allowed_error[name]


def _seen_before(observation: Observation, name: str, stage: str) -> NDArray | None:
    """The subject's own array of a step before the stage, if it has the right shape to replace the reference's."""
    own = observation.arrays.get(name)
    if name == stage or own is None or own.shape != getattr(observation.wanted.trace, name).shape:
        return None
    return own


def _start(observation: Observation) -> State:
    """A State of the case before the first step."""
    problem = observation.wanted.problem
    inputs = replace(problem.inputs, cotangent=None)
    return reference.run_state(problem.config, problem.weights, inputs, forward={})


def _difference(name: str, own: NDArray, made: NDArray | None) -> str:
    """The place of the largest difference of two arrays, in words."""
    if made is None or own.shape != made.shape:
        shape = "nothing" if made is None else f"shape {made.shape}"
        return f"where {name} has shape {own.shape} and this gives {shape}"
    place = worst(own, made, 1.0).index
    return f"where {name}[{', '.join(map(str, place))}] is {own[place]:.6g} and this gives {made[place]:.6g}"


def inside_of(subject: Subject, observed: Sequence[Observation], deviating: Mapping[str, object]) -> str | None:
    """The dtype by whose errors the subject is judged, if it is narrower than its own.

    It gives numbers of that dtype alone; or it deviates from float64 as is listed, by no more than float32 errs.
    """
    inside = narrower([one.arrays["output"] for one in observed], subject.dtype)
    if subject.dtype != "float64":
        return inside
    listed = [one for one in observed if one.case.id in deviating]
    errs = bool(listed) and not any(map(Evidence(Runs(), subject.dtype, "float32").wrong, listed))
    return "float32" if inside or errs else None  # what rounds to less than float32 is a bug on top of that
