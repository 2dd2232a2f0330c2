"""False alarms: correct implementations on random problems, and how close they come to their bounds.

Every correct implementation must pass, so each rejection is a mistake in a bound. Layer after layer is
drawn, each with several problems, and each problem goes to every subject. `of_layer` yields an Outcome
per run, `unit.py` makes work for processes of it, and `Figures` gathers them. An Outcome's `case`,
SEED-INDEX, runs the same problem again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.bounds.precision import Precision
from conformance.calibration.draws import DRAWS_PER_LAYER, Layer, draw_layer, draw_problem
from conformance.cases.problem import Problem
from conformance.judging.expected import Expected, answer
from conformance.subjects.subject import Subject
from mha_core import STAGES, SpecError
from mha_core.backend import Run
from mha_core.errors import one_line
from mha_core.stages import is_gradient

ARRAYS = (*STAGES, "gradients")
"""What ratios are gathered by."""

QUANTILES = {"median": 0.5, "99 %": 0.99, "99.9 %": 0.999, "max": 1.0}
"""What is reported of a distribution."""

SLOW_EVERY = 2
"""A subject that is slow to prepare takes part in one of so many layers, because each costs it a compilation."""


@dataclass(frozen=True)
class Outcome:
    """One run: one problem on one subject.

    Attributes:
        case: SEED-INDEX of the problem.
        ratios: worst error / allowed error of each stage, and of all gradients together.
        worst: the array with the largest ratio.
        message: what is wrong, if the subject was rejected or failed; else empty.
        failed: whether it raised instead of giving an answer.
        selector: the options of `mha calibrate` that choose the subject.
    """

    subject: str
    dtype: str
    case: str
    ratios: Mapping[str, float] = field(default_factory=dict)
    worst: str = ""
    message: str = ""
    failed: bool = False
    selector: str = ""

    @property
    def ratio(self) -> float:
        """The largest."""
        return max(self.ratios.values(), default=0.0)

    @property
    def rejected(self) -> bool:
        return bool(self.message) and not self.failed

    @property
    def replay(self) -> str:
        """The command that runs this problem on this subject again."""
        selector = f" {self.selector}" if self.selector else ""
        return f"mha calibrate --replay {self.case} --dtype {self.dtype}{selector}"


def taking_part(subjects: Sequence[Subject], number: int) -> list[Subject]:
    """The subjects that take part in layer `number`."""
    return [s for s in subjects if number % SLOW_EVERY == 0 or not getattr(s, "slow_to_prepare", False)]


def of_layer(
    seed: int, number: int, dtype: str, subjects: Sequence[Subject]
) -> Iterator[tuple[int, Expected, Outcome]]:
    """The problems of one layer on each subject; yields (index of the problem, what is expected, outcome)."""
    layer = draw_layer(seed, number)
    prepared: dict[str, Run] = {}
    for index in range(number * DRAWS_PER_LAYER, (number + 1) * DRAWS_PER_LAYER):
        problem = draw_problem(seed, index, dtype, layer)
        for wanted, outcome in _problem_on(f"{seed}-{index}", problem, subjects, layer, prepared):
            yield index, wanted, outcome


def parse_case(case: str) -> tuple[int, int]:
    """The seed and the index of a problem. Raises SpecError for what is not SEED-INDEX.

    >>> parse_case("7-204")
    (7, 204)
    """
    found = re.fullmatch(r"(\d{1,18})-(\d{1,18})", case, re.ASCII)
    if found is None:
        raise SpecError(f"replay must be SEED-INDEX, two numbers as a report gives them. Got {case!r}.")
    return int(found[1]), int(found[2])


def replay(case: str, dtype: str, subjects: Sequence[Subject]) -> Iterator[tuple[Expected, Outcome]]:
    """One problem again, on each subject. Raises SpecError, when called, for a case that is not SEED-INDEX."""
    seed, index = parse_case(case)
    layer = draw_layer(seed, index // DRAWS_PER_LAYER)
    return _problem_on(f"{seed}-{index}", draw_problem(seed, index, dtype, layer), subjects, layer, {})


def _problem_on(
    case: str, problem: Problem, subjects: Sequence[Subject], layer: Layer, prepared: dict[str, Run]
) -> Iterator[tuple[Expected, Outcome]]:
    answers: dict[Precision, Expected] = {}
    for subject in subjects:
        if subject.precision not in answers:
            answers[subject.precision] = answer(problem, subject.precision)
        wanted = answers[subject.precision]
        # Weights that had to shrink for this problem belong to it alone.
        runs = prepared if problem.weights is layer.weights else {}
        yield wanted, judge(case, wanted, subject, runs)


def judge(case: str, wanted: Expected, subject: Subject, prepared: dict[str, Run]) -> Outcome:
    """Run one subject on one problem. `prepared` keeps what it prepared, by its name."""
    problem = wanted.problem
    try:
        if subject.name not in prepared:
            prepared[subject.name] = subject.prepare(problem.config, problem.weights)
        trace = prepared[subject.name](problem.inputs)
    except Exception as error:  # whatever a framework raises; the other runs go on
        return failed(subject, case, one_line(error))
    ratios, mismatches = wanted.judge(trace, subject.dtype)
    message = "\n".join(mismatch.message for mismatch in mismatches)
    by_array: dict[str, float] = defaultdict(float)
    for name, ratio in ratios.items():
        by_array[name.split(".")[0]] = max(by_array[name.split(".")[0]], ratio)
    worst = max(ratios, key=lambda name: ratios[name], default="")
    selector = _selector_of(subject)
    return Outcome(subject.name, subject.dtype, case, dict(by_array), worst, message, selector=selector)


def failed(subject: Subject, case: str, reason: str) -> Outcome:
    """A run that gave no answer, with the reason in one line."""
    selector = _selector_of(subject)
    return Outcome(subject.name, subject.dtype, case, message=reason, failed=True, selector=selector)


def _selector_of(subject: Subject) -> str:
    """The options of `mha calibrate` that choose the subject; a backend takes part on all its paths."""
    selector: str = getattr(subject, "selector", "")
    return selector.partition(" --path ")[0]


Tightness = Mapping[str, tuple[float, ...]]
"""Array, or "gradients" -> the allowed error of its median element, as a fraction of its largest magnitude; one number
for each array of that name."""


def tightness(wanted: Expected) -> Tightness:
    """How tight the bounds of one problem are; arrays of zeros are left out."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, array in wanted.trace.arrays().items():
        kind = "gradients" if is_gradient(name) else name
        counts = wanted.where if name == "scores" else np.ones(array.shape, dtype=bool)
        largest = np.abs(array[counts]).max(initial=0.0)
        if largest > 0.0:
            found[kind].append(float(np.median(wanted.allowed_error[name][counts]) / largest))
    return {kind: tuple(values) for kind, values in found.items()}


def quantiles(ratios: Iterable[float]) -> dict[str, float]:
    """The QUANTILES of a distribution that is not empty.

    >>> quantiles([0.1, 0.2, 0.4])["median"]
    0.2
    """
    values = np.fromiter(ratios, dtype=float)
    return {name: float(np.quantile(values, q, method="higher")) for name, q in QUANTILES.items()}


class Figures:
    """What all runs came to.

    Attributes:
        outcomes: every run, in order.
        tightness: (dtype, array) -> one number per problem: the allowed error of its median element,
            as a fraction of the largest magnitude in that array.
    """

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.tightness: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._measured = ("", "")

    def add(self, wanted: Expected, outcome: Outcome) -> None:
        """One more run; the bounds of a problem are measured once."""
        self.add_measured(outcome, None if self._measured == (outcome.dtype, outcome.case) else tightness(wanted))

    def add_measured(self, outcome: Outcome, measured: Tightness | None) -> None:
        """One more run, and the tightness of its problem: the first that is given of a problem counts."""
        self.outcomes.append(outcome)
        if measured is None or self._measured == (outcome.dtype, outcome.case):
            return
        self._measured = (outcome.dtype, outcome.case)
        for kind, values in measured.items():
            self.tightness[outcome.dtype, kind] += values

    @property
    def rejected(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.rejected]

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.failed]

    def dtypes(self) -> list[str]:
        """The dtypes that ran, in order."""
        return list(dict.fromkeys(outcome.dtype for outcome in self.outcomes))

    def of_dtype(self, dtype: str) -> list[Outcome]:
        """Every run in one dtype."""
        return [outcome for outcome in self.outcomes if outcome.dtype == dtype]

    def by_array(self, dtype: str) -> dict[str, dict[str, dict[str, float]]]:
        """Array, or "gradients" -> the quantiles of its "ratio" in all runs in one dtype, and of what is "allowed"."""
        found = {}
        for name in ARRAYS:
            ratios = [outcome.ratios[name] for outcome in self.of_dtype(dtype) if name in outcome.ratios]
            if ratios and self.tightness[dtype, name]:
                found[name] = {"ratio": quantiles(ratios), "allowed": quantiles(self.tightness[dtype, name])}
        return found

    def by_subject(self, dtype: str) -> dict[str, dict[str, Any]]:
        """Subject -> its "runs" in one dtype, how many were "rejected", and the quantiles of their "ratio"."""
        found: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in self.of_dtype(dtype):
            found[outcome.subject].append(outcome)
        return {
            name: {
                "runs": len(outcomes),
                "rejected": sum(outcome.rejected for outcome in outcomes),
                "ratio": quantiles(outcome.ratio for outcome in outcomes),
            }
            for name, outcomes in found.items()
        }

    def worst(self, dtype: str) -> Outcome:
        """The run that came closest to its bound, or farthest over it."""
        return max(self.of_dtype(dtype), key=lambda outcome: outcome.ratio)
