"""Hypotheses: one bug or two, counted over the cases.

A hypothesis is ranked by the failing cases that it explains, less the passing ones that it breaks. A bug that changes
no case "explains" every passing one, so it gains nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF, Precision, narrower
from conformance.diagnosis.observations import Arrays, Observation, Runs
from conformance.judging.distance import Nearness, distance, worst
from conformance.judging.expected import expected
from conformance.kinds.made import Model, is_measured
from conformance.subjects.subject import Subject
from conformance.zoo.bug import Bug, compatible
from mha_core import STAGES
from mha_core.stages import is_gradient

LAST_PLACES = 4.0
"""Units in the last place, of a narrower dtype, that a number may be off which needs no arithmetic there: a bias."""


@dataclass(frozen=True)
class Miss:
    """A case that a hypothesis does not explain: its id, a message on what differs, and `extremity` (0 to 2)."""

    case: str
    message: str
    extremity: int = 0


class Evidence:
    """A test of whether a hypothesis (the reference with some bugs) explains a case, for the cases of one subject.

    Args:
        runs: the runner of the hypotheses.
        dtype: the subject's dtype.
        inside: a narrower dtype in which the subject computes. Error bounds are for this dtype. None: for `dtype`.
    """

    def __init__(self, runs: Runs, dtype: str, inside: str | None = None) -> None:
        self.runs = runs
        self.inside = inside
        self.nearness = Nearness.of(UNIT_ROUNDOFF[inside or dtype], inside=inside is not None)
        self.wrong: Callable[[Observation], tuple[str, ...]] = cache(self._wrong)
        """The names of the arrays that are wrong in a case, in their order; empty if it passes."""
        self.whole: Callable[[Observation, tuple[Bug, ...]], bool] = cache(self._whole)
        """Return whether the reference with these bugs gives all arrays that the subject exposes in a case."""
        self.explains: Callable[[Observation, tuple[Bug, ...]], bool] = cache(self._explains)
        """Return whether these bugs explain a case."""

    def _wrong(self, observation: Observation) -> tuple[str, ...]:
        if self.inside is None:
            return tuple(mismatch.stage for mismatch in observation.mismatches)
        right = observation.wanted.trace.arrays()
        return tuple(name for name in observation.arrays if not self.alike(observation, right, names=[name]))

    def _whole(self, observation: Observation, bugs: tuple[Bug, ...]) -> bool:
        arrays = self.runs.arrays(observation, bugs)
        if bugs and self.runs.is_unchanged(observation, arrays):
            return self.whole(observation, ())
        return self.alike(observation, arrays)

    def _is_no_nearer(self, observation: Observation, bugs: tuple[Bug, ...]) -> bool:
        """Return whether rounded parameters, which give what they give to the bit, leave half of the difference."""
        arrays, right = self.runs.arrays(observation, bugs), observation.wanted.trace.arrays()
        if arrays is None or not any(
            bug.id.partition("-in-")[0].endswith(("parameters", "-proj-weight")) for bug in bugs
        ):
            return False
        own = observation.arrays
        return any(
            distance(arrays[name], own[name]).max(initial=0.0) > distance(right[name], own[name]).max(initial=0.0) / 2
            for name in self.wrong(observation)
        )

    def _explains(self, observation: Observation, bugs: tuple[Bug, ...]) -> bool:
        if self.whole(observation, bugs):
            return not self._is_no_nearer(observation, bugs)
        wrong, arrays = self.wrong(observation), self.runs.arrays(observation, bugs)
        if observation.has_other_shape:  # which says nothing against a bug that can't be made there
            return any(self.runs.arrays(observation, (bug,)) is None for bug in bugs)
        if arrays is None:
            return not wrong  # where a bug can't be made, a right answer says nothing against it
        if len(observation.arrays) == 1:
            return False
        gradients = [name for name in observation.arrays if is_gradient(name)]
        return self.alike(observation, arrays, names=["output", *(gradients if "output" not in wrong else ())])

    def miss(self, observation: Observation, bugs: tuple[Bug, ...]) -> Miss:
        """Return a Miss: the first array, output first, that the reference with these bugs does not reproduce."""
        arrays = self.runs.arrays(observation, bugs)
        if arrays is None:
            return Miss(observation.case.id, "where it cannot be made", observation.extremity)
        names = sorted(observation.arrays, key=lambda name: name != "output")
        name = next(name for name in names if not self.alike(observation, arrays, names=[name]))
        what = _difference(name, observation.arrays[name], arrays.get(name))
        return Miss(observation.case.id, what, observation.extremity)

    def others(self, observation: Observation, bugs: tuple[Bug, ...]) -> list[str]:
        """Return the names of arrays that differ between the subject and the reference with these bugs, in one case."""
        arrays = self.runs.arrays(observation, bugs)
        return [name for name in observation.arrays if arrays and not self.alike(observation, arrays, names=[name])]

    def changes(self, observation: Observation, bug: Bug) -> bool:
        """Return whether a bug changes an array that the subject returns, or needs something that the case lacks."""
        arrays = self.runs.arrays(observation, (bug,))
        if self.runs.is_unchanged(observation, arrays):
            return False
        return not self.alike(observation, arrays, observation.wanted.trace.arrays())

    def alike(
        self, observation: Observation, arrays: Arrays, others: Arrays = None, names: Iterable[str] | None = None
    ) -> bool:
        """Return whether two runs agree, within rounding, in `names`. Default: the subject's. None never agrees."""
        other, where = others or observation.arrays, observation.wanted.where
        return arrays is not None and all(
            name in arrays
            and self.nearness.near(
                arrays[name], other[name], self._bound(observation, name), where if name == "scores" else None
            )
            for name in names or observation.arrays
        )

    def _bound(self, observation: Observation, name: str) -> NDArray:
        if self.inside is None:
            return observation.wanted.allowed_error[name]
        own = np.abs(observation.wanted.trace.arrays()[name])
        rounding = LAST_PLACES * UNIT_ROUNDOFF[self.inside] * np.where(np.isfinite(own), own, 0.0)
        return expected(observation.case, Precision.of(self.inside)).allowed_error[name] + rounding


def _difference(name: str, own: NDArray, made: NDArray | None) -> str:
    """The place of the largest difference of two arrays, in words."""
    if made is None or own.shape != made.shape:
        shape = "nothing" if made is None else f"shape {made.shape}"
        return f"where {name} has shape {own.shape}, with this mistake {shape}"
    place = worst(own, made, 1.0).index
    return f"where {name}[{', '.join(map(str, place))}] is {own[place]:.6g}, with this mistake {made[place]:.6g}"


def inside_of(subject: Subject, observed: Sequence[Observation], deviating: Mapping[str, object]) -> str | None:
    """Return a dtype narrower than the subject's, whose error bounds replace those of its own; None to keep its own.

    This dtype can represent every number of the outputs. A float64 subject gets float32 if this or a narrower dtype
    can, or if the cases in `deviating` (known deviations) are within the error bounds of float32.
    """
    inside = narrower([one.arrays["output"] for one in observed], subject.dtype)
    if subject.dtype != "float64":
        return inside
    listed = [one for one in observed if one.case.id in deviating]
    errs = bool(listed) and not any(map(Evidence(Runs(), subject.dtype, "float32").wrong, listed))
    return "float32" if inside or errs else None  # what rounds to less than float32 is a bug on top of that


NAMED, CLOSEST, CLOSEST_LEAST = 0.75, 0.25, 2
"""Shares of the failing cases that a hypothesis must explain, those that it breaks taken off, to be named, and to be
listed as close; and the least number of them. Layers with a bug of the zoo differ from it in extreme cases too (NaN,
empty rows, sizes of 0), which are up to a quarter of the table; by chance a bug explains a tenth."""

MUCH_MORE = 2.0
"""How much more than another a model may change and still be said beside it."""

MOST_PAIRS, MOST_TRIED, EXTENDED, MOST_RANKED, SHOWN = 40_000, 2000, 3, 8, 3
"""Pairs that are tried to explain everything, or the most; bugs that are extended by another one, hypotheses that are
compared, and that are shown."""


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis: the subject computes as the reference with these bugs. Without bugs, only the precision is wrong.

    Attributes:
        explained, total: the number of cases that the hypothesis explains, and of all cases.
        failing, of_failing: the same two numbers, of failing cases alone.
        misses: a Miss for each case that it does not explain, failing cases first.
        others: array -> number of explained cases in which the hypothesis gives the output, but not this array.
        late: bugs to name last. They change none of the least extreme failing cases (see `Observation.extremity`).
    """

    bugs: Model
    explained: int
    total: int
    failing: int = 0
    of_failing: int = 0
    misses: tuple[Miss, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)
    late: frozenset[Bug] = frozenset()

    @property
    def name(self) -> str:
        """Return the ids of the bugs, joined by " + "."""
        return " + ".join(bug.id for bug in self.bugs)


def preferred(models: Iterable[Model]) -> list[Model]:
    """Return the shortest models (tuples of bugs), at most SHOWN; of equals, those with the most bugs of the zoo.

    One that changes a step twice is left out where another changes each once: two factors of keys are one as well.
    """
    ranked = sorted(models, key=lambda model: (len(model), sum(map(is_measured, model))))
    # A factor of queries is one of scores too: it is said of the first place that has it.
    told = {tuple(_factor(bug) for bug in model): model for model in ranked[::-1]}
    best = [model for model in ranked if model in told.values() and len(model) == len(ranked[0])]
    best = [one for one in best if sum(map(is_measured, one)) == sum(map(is_measured, best[0]))]
    once = [
        one for one in best if len({step for bug in one for step in bug.steps}) == sum(len(bug.steps) for bug in one)
    ]
    return (once if once and all(map(is_measured, best[0])) else best)[:SHOWN]


def _factor(bug: Bug) -> str:
    _, times, number = bug.id.partition("-times-")
    return times + number if is_measured(bug) and times else bug.id


class Search:
    """The search for hypotheses that explain the observations of one subject.

    Cases are ordered so that wrong hypotheses are dropped early: failing ones, then small ones. Expensive cases come
    last, failing ones first, so that only the hypotheses that fit all others run on them.
    """

    def __init__(self, observations: Sequence[Observation], evidence: Evidence) -> None:
        self.evidence = evidence
        self.observations = sorted(
            observations,
            key=lambda one: (one.case.expensive, not evidence.wrong(one), one.wanted.problem.inputs.keys.size),
        )
        self.failing = [one for one in self.observations if evidence.wrong(one)]
        # A stage that is wrong and does not reach the output tells nothing, where others do.
        self._felt = [one for one in self.failing if not {*STAGES[:-1]}.issuperset(evidence.wrong(one))]
        reached = self._felt or self.failing
        # A wrong shape alone shows no bug: it is said as such.
        self._numbers = [one for one in self.failing if not one.has_other_shape]
        ordinary = ([one for one in reached if one.extremity <= most] for most in (0, 1, 2))
        self._decisive = next((found for found in ordinary if found), [])
        # Where cheap cases fail, what bugs change is told by these alone.
        cheap = [one for one in self.observations if not one.case.expensive]
        self._telling = cheap if any(map(evidence.wrong, cheap)) else [*cheap, *self.failing]
        self._changes: Callable[[Bug], frozenset[int]] = cache(
            lambda bug: frozenset(index for index, one in enumerate(self._telling) if evidence.changes(one, bug))
        )
        self.further: Callable[[Model], bool] = lambda model: True
        """Return whether a model gives what the subject gave in further calls."""

    @property
    def are_right(self) -> bool:
        """Return whether all arrays of the subject equal the reference's, except for dtype and rounding."""
        return all(self.evidence.whole(one, ()) for one in self.observations)

    @property
    def only_large(self) -> bool:
        """Return whether only expensive cases fail, as with a bug that acts only in large cases."""
        return all(one.case.expensive for one in self.failing)

    def wholly(self, candidates: Iterable[Model]) -> list[Model]:
        """Return candidates that reproduce all arrays of all cases; if none does, those that reproduce all outputs."""
        explained = [bugs for bugs in candidates if self.explained(bugs)]
        whole = [bugs for bugs in explained if all(self.evidence.whole(one, bugs) for one in self.observations)]
        return whole or explained

    def _explains(self, one: Observation, bugs: Model) -> bool:
        """Return whether bugs explain a case: where no output is wrong at all, they must give the stages that are."""
        told = self._felt or one not in self.failing
        return (self.evidence.explains if told else self.evidence.whole)(one, bugs)

    def explained(self, bugs: Model) -> bool:
        """Return whether bugs explain every case."""
        if not all(self._explains(one, bugs) for one in self.observations):
            return False
        return not (self.failing and bugs) or any(self._explains(one, bugs) for one in self._numbers)

    def pairs(self, zoo: Sequence[Bug], *, ordinary: bool = False) -> list[Model]:
        """Return pairs of bugs that together change every failing case; pairs that change few passing cases come first.

        With `ordinary`, pairs need not change extreme cases, in which a layer may differ for another reason.
        """
        some = self._decisive if ordinary else self.failing
        failing, needed = (
            frozenset(index for index, one in enumerate(self._telling) if one in cases)
            for cases in (self.failing, some)
        )
        touching = [bug for bug in zoo if self._changes(bug) & failing]
        found = []
        for first, second in combinations(touching, 2):
            touched = self._changes(first) | self._changes(second)
            if needed <= touched and (compatible(first, second) or self._may_share_a_step(first, second)):
                found.append((len(touched - failing), first, second))
        # What empties a row shows what else is done with empty rows, which may show by itself in no case.
        emptying = [bug for bug in touching if "allowed" in bug.forward and needed <= self._changes(bug)]
        alone = [bug for bug in zoo if {*bug.steps} == {"weights"} and not self._changes(bug)]
        found += [(len(self._changes(one) - failing), one, other) for one, other in product(emptying, alone)]
        found.sort(key=lambda pair: pair[0])
        return [(first, second) for _, first, second in found[:MOST_PAIRS]]

    def _may_share_a_step(self, first: Bug, second: Bug) -> bool:
        """Return whether, of two bugs of one step, each explains the cases that it alone changes."""
        return all(
            self.evidence.whole(self._telling[index], (bug,))
            for bug, other in ((first, second), (second, first))
            for index in sorted(self._changes(bug) - self._changes(other))
        )

    def acting(self, bugs: Model) -> Model:
        """Return the bugs that are needed to explain every case and further call; others are left out."""
        for bug in bugs if len(bugs) > 1 else ():
            rest = tuple(other for other in bugs if other is not bug)
            if self.further(rest) and self.wholly([rest]):
                return self.acting(rest)
        return bugs

    def least(self, models: Sequence[Model]) -> list[Model]:
        """Return the models (tuples of bugs) whose change of the output is at most MUCH_MORE times the least one.

        A model's change is the sum over its bugs, each run alone. So bugs that cancel each other out count in full.
        """

        def change(bug: Bug) -> float:
            right = [one.wanted.trace.arrays() for one in self._decisive]
            made = [self.evidence.runs.arrays(one, (bug,)) or {} for one in self._decisive]
            pairs = ((a.get("output", b["output"]), b["output"]) for a, b in zip(made, right, strict=True))
            return sum(float(np.minimum(distance(a, b), 1.0).sum()) for a, b in pairs)

        changes = {model: sum(map(change, model)) for model in models}
        return [model for model in models if changes[model] <= MUCH_MORE * min(changes.values())]

    def closest(self, zoo: Sequence[Bug], *, pairs: bool) -> list[Hypothesis]:
        """Return the hypotheses of one or two bugs that explain the most cases; [] if they explain few failures.

        Without `pairs`, two bugs are tried only if one of them explains some cases by itself.
        """
        ranked = self._ranked((bug,) for bug in zoo)[:MOST_RANKED]
        if not ranked and pairs:  # two that act in the same cases may explain none alone
            ranked = self._ranked(self.pairs(zoo, ordinary=True)[:MOST_TRIED])[:MOST_RANKED]
        ranked += self._ranked(pair for base in ranked[:EXTENDED] for pair in self.helped(base, zoo))[:MOST_RANKED]
        found = sorted(map(self.hypothesis, ranked), key=lambda one: len(one.bugs) - one.explained)
        alike = [(one.explained, len(one.bugs)) == (found[0].explained, len(found[0].bugs)) for one in found]
        return [one for one, is_alike in zip(found, alike, strict=True) if is_alike][:SHOWN]

    def helped(self, base: Model, zoo: Sequence[Bug]) -> Iterator[Model]:
        """Yield each model (`base` and one more bug) that explains the first failing case unexplained by `base`."""
        missing = next((one for one in self.failing if not self._explains(one, base)), None)
        for bug in zoo if missing is not None else ():
            pair = (*base, bug)
            if bug not in base and missing is not None and self._explains(missing, pair):
                yield pair

    def _ranked(self, models: Iterable[Model]) -> list[Model]:
        found = [(gain, bugs) for bugs in models if (gain := self.gain(bugs)) >= CLOSEST]
        return [bugs for _, bugs in sorted(found, key=lambda one: -one[0])]

    def gain(self, bugs: Model) -> float:
        """Return (ordinary failing cases explained - passing cases broken) / ordinary failing cases.

        The result is 0 if too few cases are explained.
        """
        explained, left = 0, len(self._decisive)
        for one in self._decisive:
            explained, left = explained + self._explains(one, bugs), left - 1
            if explained + left < CLOSEST * len(self._decisive):
                return 0.0
        of_all = sum(self._explains(one, bugs) for one in self._numbers)
        if of_all < min(CLOSEST_LEAST, (len(self.failing) + 1) // 2):
            return 0.0
        right = (one for one in self.observations if not self.evidence.wrong(one))
        return (explained - sum(not self._explains(one, bugs) for one in right)) / len(self._decisive)

    def of_large_cases(self, zoo: Sequence[Bug]) -> list[Hypothesis]:
        """Return one-bug hypotheses that explain every failing case (all are large) but not every smaller case."""
        some = [bug for bug in zoo if all(self._explains(one, (bug,)) for one in self.failing)]
        found = sorted((self.hypothesis((bug,)) for bug in some), key=lambda one: -one.explained)
        return [one for one in found if one.explained == found[0].explained][:SHOWN]

    def hypothesis(self, bugs: Model) -> Hypothesis:
        """Return the Hypothesis of these bugs, with the cases that they explain and miss."""
        explained = [one for one in self.observations if self._explains(one, bugs)]
        missed = [one for one in self.observations if one not in explained]
        return Hypothesis(
            bugs,
            explained=len(explained),
            total=len(self.observations),
            failing=sum(one in explained for one in self.failing),
            of_failing=len(self.failing),
            misses=tuple(self.evidence.miss(one, bugs) for one in missed),
            others=dict(Counter(name for one in explained for name in self.evidence.others(one, bugs))),
            late=frozenset(bug for bug in bugs if not any(self.evidence.changes(one, bug) for one in self._decisive)),
        )


def stage_of(hypotheses: Sequence[Hypothesis]) -> str | None:
    """Return the first wrong stage of the best hypothesis; None if it has no bug."""
    stages = {bug.stage for one in hypotheses[:1] for bug in one.bugs}
    return min(stages & {*STAGES}, key=STAGES.index, default=None)
