"""Diagnosis: since which stage a subject differs, and which bug, or pair of bugs, explains it.

A hypothesis is the reference with one or two bugs of the zoo in it. It explains the subject if it
gives what the subject gives in *every* case, the failing and the passing ones. Outputs are enough;
where stages and gradients are visible, they must agree as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from conformance.bug import Bug, DoesNotApply, compatible, pipelines
from conformance.bugs import all_bugs
from conformance.case import Case
from conformance.compare import Mismatch, ParityError, compare
from conformance.expected import Expected, expected
from conformance.guard import CannotExpress, SubjectFailed, ask
from conformance.precision import UNIT_ROUNDOFF
from conformance.problem import Problem
from conformance.rerun import rerun
from conformance.runner import Subject
from mha_core import STAGES, AttentionInputs, SpecError, Trace, reference
from mha_core.reference import State

SLACK = 100.0
"""How many times the bound a hypothesis may be off: the bug changes the numbers that the bound was made from."""

RELATIVE = 1000.0
"""And how many roundoffs of the largest number in the array."""

MOST_PAIRS_TRIED = 5000

ROOM = 2**28
"""Bytes that intermediate arrays of runs without a bug may take, from which the others start."""

MOST_BUGS = 4
BEAM = 4
"""Of the search for several bugs at once: how many, and how many hypotheses it follows."""

CLOSEST_SHOWN = 3


@dataclass(frozen=True)
class Hypothesis:
    """One bug or a pair of them, and how many of the cases it explains."""

    bugs: tuple[Bug, ...]
    explained: int
    total: int

    @property
    def name(self) -> str:
        return " + ".join(bug.id for bug in self.bugs)

    @property
    def complete(self) -> bool:
        """Whether it explains every case."""
        return self.explained == self.total


@dataclass(frozen=True)
class Diagnosis:
    """What is known about one subject.

    Attributes:
        failing, passing: ids of the cases where it differs, and where it is equal.
        left_out: case id -> why it could not be judged.
        mismatch: the first array over its bound, in the failing case that shows it earliest.
        visible: the names of the arrays that the subject exposes.
        explanations: hypotheses that explain every case; several, if these cases can't tell them apart.
        closest: if there is none, those that explain the most, best first.
    """

    subject: str
    dtype: str
    failing: tuple[str, ...]
    passing: tuple[str, ...]
    left_out: Mapping[str, str]
    mismatch: Mismatch | None
    visible: tuple[str, ...]
    explanations: tuple[Hypothesis, ...] = ()
    closest: tuple[Hypothesis, ...] = ()


@dataclass(frozen=True, eq=False)
class Observation:
    """One case as the subject sees it: the right answer, and what the subject gave."""

    case: Case
    wanted: Expected
    arrays: Mapping[str, NDArray]
    mismatches: tuple[Mismatch, ...]


def diagnose(
    subject: Subject,
    cases: Iterable[Case],
    *,
    bugs: Sequence[Bug] | None = None,
    runs: Runs | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Diagnosis:
    """Run the subject on the cases and look for the bugs that explain it.

    Args:
        subject: what to diagnose; anything with `prepare(config, weights) -> run(inputs) -> Trace`.
        cases: at least one of them; the more, the fewer hypotheses are left.
        bugs: the zoo to choose from. Default: all of it.
        runs: what hypotheses give, kept from an earlier diagnosis with the same cases and dtype.
        progress: is told what is being done.

    Raises:
        SpecError: the subject could not run a single case.
    """
    progress("running the subject")
    observations, left_out = observe(subject, cases)
    if not observations:
        reason = next(iter(left_out.values()), "there are no cases")
        raise SpecError(f"{subject.name!r} could not run a single case: {reason}")
    failing = [observation for observation in observations if observation.mismatches]
    found = Diagnosis(
        subject=subject.name,
        dtype=subject.dtype,
        failing=tuple(observation.case.id for observation in failing),
        passing=tuple(observation.case.id for observation in observations if not observation.mismatches),
        left_out=left_out,
        mismatch=_earliest(failing),
        visible=tuple(dict.fromkeys(name for observation in observations for name in observation.arrays)),
    )
    if not failing:
        return found
    zoo = [bug for bug in (all_bugs() if bugs is None else bugs) if not bug.equivalent]
    progress(f"trying {len(zoo)} bugs")
    table = Explanations(observations, subject.dtype, runs or Runs())
    explanations: list[tuple[Bug, ...]] = [(bug,) for bug in zoo if table.explains_all((bug,))]
    if not explanations:
        progress("trying pairs of bugs")
        explanations = [pair for pair in table.promising_pairs(zoo) if table.explains_all(pair)]
    if explanations:
        return replace(found, explanations=tuple(table.hypothesis(bugs) for bugs in explanations))
    progress("trying more bugs at once")
    ranked = table.grow(zoo)
    if ranked[0].complete:
        return replace(found, explanations=tuple(hypothesis for hypothesis in ranked if hypothesis.complete))
    return replace(found, closest=tuple(one for one in ranked[:CLOSEST_SHOWN] if one.explained))


def observe(subject: Subject, cases: Iterable[Case]) -> tuple[list[Observation], dict[str, str]]:
    """Run every case; what can't be run is left out, with its reason."""
    observations, left_out = [], {}
    for case in cases:
        wanted = expected(case, subject.precision)
        try:
            trace = ask(subject, wanted.problem)
        except (CannotExpress, SubjectFailed) as reason:  # the other cases still tell something
            left_out[case.id] = str(reason)
            continue
        mismatches = _mismatches(trace, wanted, subject.dtype)
        observations.append(Observation(case, wanted, _arrays(trace), mismatches))
    return observations, left_out


def _mismatches(trace: Trace, wanted: Expected, dtype: str) -> tuple[Mismatch, ...]:
    try:
        compare(trace, wanted.trace, wanted.allowed_error, wanted.where, dtype)
    except ParityError as error:
        return tuple(error.mismatches)
    return ()


def _arrays(trace: Trace) -> dict[str, NDArray]:
    gradients = {f"gradients.{name}": array for name, array in (trace.gradients or {}).items()}
    return {**dict(trace.stages()), **gradients}


def _earliest(failing: Sequence[Observation]) -> Mismatch | None:
    """The mismatch at the earliest stage; of those, the one that is furthest over its bound."""

    def rank(mismatch: Mismatch) -> tuple[int, float]:
        position = STAGES.index(mismatch.stage) if mismatch.stage in STAGES else len(STAGES)
        return position, -(mismatch.error or 0.0)

    firsts = [observation.mismatches[0] for observation in failing]
    return min(firsts, key=rank, default=None)


class Runs:
    """What the reference gives with some bugs in it, case by case; nothing runs twice.

    Nor does a step that a bug leaves as it was, while there is room for what it gave: see `rerun`.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, bool, tuple[str, ...]], dict[str, NDArray] | None] = {}
        self._right: dict[tuple[Problem, bool], tuple[State, dict[str, NDArray]] | None] = {}
        self._room = ROOM

    def arrays(self, observation: Observation, bugs: tuple[Bug, ...]) -> dict[str, NDArray] | None:
        """Every stage, and every gradient if the subject shows some; None where the bugs can't be put in."""
        with_gradients = any(name.startswith("gradients.") for name in observation.arrays)
        key = observation.case.id, with_gradients, tuple(bug.id for bug in bugs)
        if key not in self._arrays:
            alone = [self.arrays(observation, (bug,)) for bug in bugs] if len(bugs) > 1 else []
            # Bugs that leave a case as it is one by one do so together: each has steps of its own.
            right = self._right.get((observation.wanted.problem, with_gradients))
            untouched = right is not None and alone and all(arrays is right[1] for arrays in alone)
            self._arrays[key] = alone[0] if untouched else self._run(observation.wanted.problem, bugs, with_gradients)
        return self._arrays[key]

    def _run(self, problem: Problem, bugs: tuple[Bug, ...], with_gradients: bool) -> dict[str, NDArray] | None:
        inputs = problem.inputs if with_gradients else replace(problem.inputs, cotangent=None)
        forward, backward = pipelines(*bugs)
        right = self._right_run(problem, inputs)
        try:
            if right is None:
                state = reference.run_state(problem.config, problem.weights, inputs, forward=forward, backward=backward)
                return _arrays(state.trace())
            replaced = {name for bug in bugs for name in bug.steps}
            state, changed = rerun(right[0], forward, replaced)
            if inputs.cotangent is not None:
                state, changed = rerun(state, backward, replaced, changed=changed)
        except DoesNotApply:
            return None
        return _arrays(state.trace()) if changed else right[1]

    def _right_run(self, problem: Problem, inputs: AttentionInputs) -> tuple[State, dict[str, NDArray]] | None:
        """The State of the reference without a bug, and what it shows; None where there is no room for it."""
        key = problem, inputs.cotangent is not None
        if key not in self._right:
            state = reference.run_state(problem.config, problem.weights, inputs)
            size = sum(array.nbytes for array in state.arrays.values() if isinstance(array, np.ndarray))
            fits = size <= self._room
            self._room -= size if fits else 0
            self._right[key] = (state, _arrays(state.trace())) if fits else None
        return self._right[key]


class Explanations:
    """Which hypotheses give what the subject gave."""

    def __init__(self, observations: Sequence[Observation], dtype: str, runs: Runs) -> None:
        # Failing cases first, then small ones: they rule out the most for the least.
        self.observations = sorted(
            observations, key=lambda one: (not one.mismatches, one.wanted.problem.inputs.keys.size)
        )
        self.failing = frozenset(index for index, one in enumerate(self.observations) if one.mismatches)
        self.unit = UNIT_ROUNDOFF[dtype]
        self.runs = runs
        self._changes: dict[str, frozenset[int]] = {}
        self._agreements: dict[tuple[str, tuple[Bug, ...]], bool] = {}

    def hypothesis(self, bugs: tuple[Bug, ...]) -> Hypothesis:
        """How many cases these bugs explain."""
        explained = sum(self.agrees(observation, bugs) for observation in self.observations)
        return Hypothesis(bugs, explained, len(self.observations))

    def explains_all(self, bugs: tuple[Bug, ...]) -> bool:
        """Whether these bugs explain every case; stops at the first that they don't."""
        return all(self.agrees(observation, bugs) for observation in self.observations)

    def agrees(self, observation: Observation, bugs: tuple[Bug, ...]) -> bool:
        """Whether the reference with these bugs gives what the subject gave in one case."""
        key = observation.case.id, bugs
        if key not in self._agreements:
            self._agreements[key] = self._alike(observation, self.runs.arrays(observation, bugs), observation.arrays)
        return self._agreements[key]

    def changes(self, bug: Bug) -> frozenset[int]:
        """The cases in which this bug changes something that the subject shows."""
        if bug.id not in self._changes:
            self._changes[bug.id] = frozenset(
                index
                for index, observation in enumerate(self.observations)
                if not self._alike(
                    observation, self.runs.arrays(observation, (bug,)), _arrays(observation.wanted.trace)
                )
            )
        return self._changes[bug.id]

    def promising_pairs(self, zoo: Sequence[Bug]) -> list[tuple[Bug, Bug]]:
        """Pairs that together touch every failing case, those that touch the fewest passing ones first.

        A bug that touches a passing case may be in the pair only if the other one undoes it there,
        so such pairs come last.
        """
        touching = [bug for bug in zoo if self.changes(bug) & self.failing]
        pairs = []
        for first, second in combinations(touching, 2):
            touched = self.changes(first) | self.changes(second)
            if self.failing <= touched and compatible(first, second):
                pairs.append((len(touched - self.failing), first, second))
        pairs.sort(key=lambda pair: pair[0])
        return [(first, second) for _, first, second in pairs[:MOST_PAIRS_TRIED]]

    def grow(self, zoo: Sequence[Bug]) -> list[Hypothesis]:
        """Hypotheses of up to MOST_BUGS bugs, best first: a beam search that adds what explains the most.

        A layer that was never held against the definition tends to differ in several places at once.
        """
        beam = self._best(self.hypothesis((bug,)) for bug in zoo)
        for _ in range(1, MOST_BUGS):
            larger = {}
            for hypothesis in beam:
                unexplained = [one for one in self.observations if not self.agrees(one, hypothesis.bugs)]
                for bug in zoo:
                    bugs = tuple(sorted({*hypothesis.bugs, bug}, key=lambda one: one.id))
                    fits = all(compatible(bug, other) for other in hypothesis.bugs)
                    if fits and any(self.agrees(one, bugs) for one in unexplained):
                        larger[bugs] = self.hypothesis(bugs)
            best = self._best([*beam, *larger.values()])
            if best == beam or best[0].complete:
                return best
            beam = best
        return beam

    def _best(self, hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
        return sorted(hypotheses, key=lambda one: (-one.explained, len(one.bugs), one.name))[:BEAM]

    def _alike(
        self, observation: Observation, arrays: Mapping[str, NDArray] | None, others: Mapping[str, NDArray]
    ) -> bool:
        """Whether two runs agree in everything that the subject shows."""
        return arrays is not None and all(
            name in arrays and self._close(observation, name, arrays[name], others[name]) for name in observation.arrays
        )

    def _close(self, observation: Observation, name: str, array: NDArray, other: NDArray) -> bool:
        if array.shape != other.shape:
            return False
        alike = array == other
        if alike.all():
            return True
        counts = observation.wanted.where if name == "scores" else np.True_
        with np.errstate(all="ignore"):
            magnitude = np.abs(array[np.isfinite(array)]).max(initial=0.0)
            allowed = SLACK * observation.wanted.allowed_error[name] + RELATIVE * self.unit * magnitude
            near = np.abs(array - other) <= allowed
        return bool((near | alike | (np.isnan(array) & np.isnan(other)) | ~counts).all())
