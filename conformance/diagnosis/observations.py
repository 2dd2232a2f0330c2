"""Observations of a subject case by case, also seen another way; and the runs of hypotheses in these cases."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.case_unit import LATE, TOO_LATE
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.deviations.known import Deviations, accounting
from conformance.judging.compare import Mismatch
from conformance.judging.expected import Expected, expected
from conformance.kinds.made import TROUBLE
from conformance.subjects.ask import CannotExpress, SubjectFailed, ask
from conformance.subjects.subject import Subject
from conformance.zoo.bug import Bug
from conformance.zoo.variants import Variants
from mha_core import SpecError
from mha_core.call.call import FLOATS
from mha_core.stages import STAGES, is_gradient


@dataclass(frozen=True, eq=False)
class Observation:
    """One case with the right answer and the subject's answer."""

    case: Case
    wanted: Expected
    arrays: Mapping[str, NDArray]
    mismatches: tuple[Mismatch, ...]

    @cached_property
    def extremity(self) -> int:
        """Return 0 for an ordinary case, 1 if a row has no allowed key, 2 if a size is 0 or an input has NaN or inf.

        Layers that agree in ordinary cases often differ in the others.
        """
        inputs = self.wanted.problem.inputs
        given = [array for name, array in inputs.leaves().items() if name in FLOATS]
        if not self.wanted.where.size or not all(np.isfinite(array).all() for array in given):
            return 2
        return 0 if self.wanted.where.any(axis=-1).all() else 1

    @property
    def has_other_shape(self) -> bool:
        """Return whether the output has another shape than the right one."""
        return self.arrays["output"].shape != self.wanted.trace.arrays()["output"].shape

    @cached_property
    def shows_gradients(self) -> bool:
        """Return whether the subject shows some gradient here."""
        return any(map(is_gradient, self.arrays))


Arrays = dict[str, NDArray] | None
"""The arrays of a run by name; None where its bugs can't be put in."""


class Runs:
    """A runner of the reference with bugs, case by case. It caches the results (see `Variants`)."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, bool, tuple[str, ...]], Arrays] = {}
        self._latest: tuple[object, Arrays] = None, None
        self._variants = Variants()

    def arrays(self, observation: Observation, bugs: tuple[Bug, ...]) -> Arrays:
        """Run the reference with bugs on a case; return name -> array, with gradients if the subject returned some.

        A bug that can't be made in the case (a wrong bias in a layer without biases) is left out. If none of the given
        bugs is left, the result is None. If bugs contradict each other, it is {}. If the case is a call in a recording,
        the result has only the recorded arrays.
        """
        with_gradients = observation.shows_gradients
        problem = observation.wanted.problem
        key = observation.case.id, with_gradients, tuple(bug.id for bug in bugs)
        if key in self._arrays:
            return self._arrays[key]
        alone = (self.arrays(observation, (bug,)) for bug in bugs)
        if len(bugs) > 1 and all(self.is_unchanged(observation, arrays) for arrays in alone):
            # Bugs that leave a case as it is one by one do so together.
            return self._variants.kept(problem, gradients=with_gradients)
        if self._latest[0] != (problem, key):
            found = self._run(problem, bugs, with_gradients)
            if found is None and len(bugs) > 1:
                possible = tuple(bug for bug in bugs if self.arrays(observation, (bug,)) is not None)
                found = self.arrays(observation, possible) if 0 < len(possible) < len(bugs) else None
            self._latest = (problem, key), found
        if len(bugs) < 2 and not observation.case.expensive:
            self._arrays[key] = self._latest[1]
        return self._latest[1]

    def is_unchanged(self, observation: Observation, arrays: Arrays) -> bool:
        """Return whether `arrays` is the dict of the run without bugs: the same object, not an equal one."""
        gradients = observation.shows_gradients
        return arrays is not None and arrays is self._variants.kept(observation.wanted.problem, gradients=gradients)

    def _run(self, problem: Problem, bugs: tuple[Bug, ...], with_gradients: bool) -> Arrays:
        try:
            arrays = self._variants.run(problem, bugs, gradients=with_gradients)
        except TROUBLE:  # a model that was measured may have no meaning in sizes that no probe had
            return None
        if not arrays or not problem.recorded or arrays is self._variants.kept(problem, gradients=with_gradients):
            return arrays
        return {name: arrays[name] for name in problem.recorded}  # other stages of large layers would fill memory


def listed_in(table: Deviations, subject: Subject) -> Callable[[Observation], tuple[str, ...]]:
    """Return a function: observation -> ids of the known deviations, if they cover all wrong arrays; else ()."""

    def known(observation: Observation) -> tuple[str, ...]:
        listed = table.listed_for(subject, observation.case.id, subject.dtype)
        return accounting(listed, [mismatch.stage for mismatch in observation.mismatches])

    return known


def observe(
    subject: Subject, cases: Iterable[Case]
) -> tuple[list[Observation], dict[str, CannotExpress | SubjectFailed]]:
    """Run the subject on every case. Return the observations, and case id -> error for each case without an answer.

    Raises:
        SpecError: the number of timeouts reached LATE before the subject had answered any case.
    """
    observations: list[Observation] = []
    left_out: dict[str, CannotExpress | SubjectFailed] = {}
    late = 0
    for case in cases:
        wanted = expected(case, subject.precision)
        try:
            trace = ask(subject, wanted.problem)
        except (CannotExpress, SubjectFailed) as reason:  # the other cases still tell something
            left_out[case.id] = reason
            late += bool(TOO_LATE.match(str(reason)))
            if late == LATE and not observations:
                raise SpecError(
                    f"{subject.name!r}: {reason} in {LATE} cases, and none with one (--time-limit)"
                ) from None
            continue
        observations.append(Observation(case, wanted, trace.arrays(), wanted.judge_of(subject, trace)[1]))
    return observations, left_out


def shown_stages(observations: Sequence[Observation]) -> dict[str, bool]:
    """Return stage -> whether it is wrong, for each stage before the output that the subject returns in some case.

    A layer may return another array under a stage's name. So a stage that differs counts as right in these cases:
    - It is a multiple of the right array, such as scaled queries.
    - The output is right in at least a quarter of the ordinary cases in which the stage differs.
    - In ordinary cases, the output differs and the stage does not.
    """
    found: dict[str, bool] = {}
    usual = any(m.stage == "output" for one in observations if one.extremity == 0 for m in one.mismatches)
    for stage in STAGES[:-1]:
        if any(stage in one.arrays for one in observations):
            wrong = [one for one in observations if any(mismatch.stage == stage for mismatch in one.mismatches)]
            telling = [one for one in wrong if one.extremity == 0 and one.wanted.problem.sizes.key_len > 1]
            telling = telling or [one for one in wrong if not usual or one.extremity == 0]
            felt = [one for one in telling if any(mismatch.stage == "output" for mismatch in one.mismatches)]
            found[stage] = 4 * len(felt) > 3 * len(telling) and not all(_is_multiple(one, stage) for one in telling)
    return found


def _is_multiple(observation: Observation, stage: str) -> bool:
    own, right = observation.arrays[stage], observation.wanted.trace.arrays()[stage]
    if own.shape != right.shape:
        return False
    if stage == "scores":
        own, right = (np.where(observation.wanted.where, array, 0.0) for array in (own, right))
    with any_numbers:
        return bool(np.allclose(own * np.vdot(right, right), right * np.vdot(right, own), rtol=1e-5))
