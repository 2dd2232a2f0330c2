"""Hypotheses: one bug or two, counted over the cases.

A hypothesis is ranked by the failing cases that it explains, less the passing ones that it breaks. A bug that changes
no case "explains" every passing one, so it gains nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations

from conformance.diagnosis.evidence import Evidence, Miss
from conformance.diagnosis.observations import Observation
from conformance.measure.faults import Model, is_measured
from conformance.zoo.bug import Bug, compatible
from mha_core import STAGES

NAMED, CLOSEST, CLOSEST_LEAST = 0.75, 0.25, 2
"""Shares of the failing cases that a hypothesis must explain, those that it breaks taken off, to be named, and to be
listed as close; and the least number of them. Layers with a bug of the zoo differ from it in extreme cases too (NaN,
empty rows, sizes of 0), which are up to a quarter of the table; by chance a bug explains a tenth."""

MOST_PAIRS, EXTENDED, MOST_RANKED, SHOWN = 40_000, 3, 8, 3
"""Pairs that are tried, bugs that are extended by another one, hypotheses that are compared, and that are shown."""


@dataclass(frozen=True)
class Hypothesis:
    """One or two bugs, and the cases that they explain. Without a bug, only the precision is wrong.

    Attributes:
        explained, total: the number of cases that it explains, and of all cases.
        failing, of_failing: the number of failing cases that it explains, and of all failing cases.
        misses: the cases that it does not explain, failing ones first, each with the array that shows it.
        others: array -> number of explained cases in which the subject's array differs from the hypothesis': such
            differences do not change the outputs.
    """

    bugs: Model
    explained: int
    total: int
    failing: int = 0
    of_failing: int = 0
    misses: tuple[Miss, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The ids of the bugs."""
        return " + ".join(bug.id for bug in self.bugs)

    @property
    def complete(self) -> bool:
        """Whether it explains every case."""
        return self.explained == self.total


def preferred(models: Iterable[Model]) -> list[Model]:
    """Return those of models that nothing tells apart that are said: of the fewest bugs, on file if possible."""
    ranked = sorted(models, key=lambda model: (len(model), sum(map(is_measured, model))))
    # A factor of queries is one of scores too: it is said of the first place that has it.
    told = {tuple(_factor(bug) for bug in model): model for model in ranked[::-1]}
    best = [model for model in ranked if model in told.values() and len(model) == len(ranked[0])]
    return [one for one in best if sum(map(is_measured, one)) == sum(map(is_measured, best[0]))][:SHOWN]


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
        self.total = len(self.observations)
        # A stage that is wrong and does not reach the output tells nothing, where others do.
        reached = [one for one in self.failing if not {*STAGES[:-1]}.issuperset(evidence.wrong(one))] or self.failing
        ordinary = ([one for one in reached if one.extremity <= most] for most in (0, 1, 2))
        self._decisive = next((found for found in ordinary if found), [])
        # Where cheap cases fail, what bugs change is told by these alone.
        cheap = [one for one in self.observations if not one.case.expensive]
        self._telling = cheap if any(map(evidence.wrong, cheap)) else [*cheap, *self.failing]
        self._changes: Callable[[Bug], frozenset[int]] = cache(self._changed_by)

    @property
    def only_large(self) -> bool:
        """Whether only expensive cases fail, as for a bug that acts in large cases alone."""
        return all(one.case.expensive for one in self.failing)

    def wholly(self, candidates: Iterable[Model]) -> list[Model]:
        """Return the candidates that give all exposed arrays in every case, else those that explain every case."""
        explained = [bugs for bugs in candidates if self.explained(bugs)]
        whole = [bugs for bugs in explained if all(self.evidence.whole(one, bugs) for one in self.observations)]
        return whole or explained

    def explained(self, bugs: Model) -> bool:
        """Return whether bugs explain every case."""
        return all(self.evidence.explains(one, bugs) for one in self.observations)

    def pairs(self, zoo: Sequence[Bug]) -> list[Model]:
        """Return pairs that together touch every failing case, those that touch the fewest passing ones first."""
        failing = frozenset(index for index, one in enumerate(self._telling) if self.evidence.wrong(one))
        touching = [bug for bug in zoo if self._changes(bug) & failing]
        found = []
        for first, second in combinations(touching, 2):
            touched = self._changes(first) | self._changes(second)
            if failing <= touched and (compatible(first, second) or self._may_share_a_step(first, second)):
                found.append((len(touched - failing), first, second))
        found.sort(key=lambda pair: pair[0])
        return [(first, second) for _, first, second in found[:MOST_PAIRS]]

    def _may_share_a_step(self, first: Bug, second: Bug) -> bool:
        """Return whether, of two bugs of one step, each explains the cases that it alone changes."""
        return all(
            self.evidence.whole(self._telling[index], (bug,))
            for bug, other in ((first, second), (second, first))
            for index in sorted(self._changes(bug) - self._changes(other))
        )

    def _changed_by(self, bug: Bug) -> frozenset[int]:
        return frozenset(index for index, one in enumerate(self._telling) if self.evidence.changes(one, bug))

    def acting(self, bugs: Model) -> Model:
        """Return the bugs without those that no case needs."""
        for bug in bugs if len(bugs) > 1 else ():
            rest = tuple(other for other in bugs if other is not bug)
            if self.wholly([rest]):
                return self.acting(rest)
        return bugs

    def closest(self, zoo: Sequence[Bug]) -> list[Hypothesis]:
        """Return one bug, or two, that explain the most cases; none that explain only a few of those that fail."""
        ranked = self._ranked((bug,) for bug in zoo)[:MOST_RANKED]
        ranked += self._ranked(pair for base in ranked[:EXTENDED] for pair in self._helped(base, zoo))[:MOST_RANKED]
        found = sorted(map(self.hypothesis, ranked), key=lambda one: len(one.bugs) - one.explained)
        return [one for one in found if one.explained == found[0].explained and len(one.bugs) == len(found[0].bugs)][
            :SHOWN
        ]

    def _helped(self, base: Model, zoo: Sequence[Bug]) -> Iterator[Model]:
        """Yield the pairs that explain the first failing case that one bug does not."""
        missing = next((one for one in self.failing if not self.evidence.explains(one, base)), None)
        for bug in zoo if missing is not None else ():
            pair = (*base, bug)
            if bug not in base and missing is not None and self.evidence.explains(missing, pair):
                yield pair

    def _ranked(self, models: Iterable[Model]) -> list[Model]:
        found = [(gain, bugs) for bugs in models if (gain := self.gain(bugs)) >= CLOSEST]
        return [bugs for _, bugs in sorted(found, key=lambda one: -one[0])]

    def gain(self, bugs: Model) -> float:
        """Return the ordinary failing cases explained, less passing ones broken, as a share of the failing ones.

        It is 0 as soon as it can't be more than CLOSEST any more.
        """
        explained, left = 0, len(self._decisive)
        for one in self._decisive:
            explained, left = explained + self.evidence.explains(one, bugs), left - 1
            if explained + left < CLOSEST * len(self._decisive):
                return 0.0
        of_all = sum(self.evidence.explains(one, bugs) for one in self.failing)
        if of_all < min(CLOSEST_LEAST, (len(self.failing) + 1) // 2):
            return 0.0
        right = (one for one in self.observations if not self.evidence.wrong(one))
        return (explained - sum(not self.evidence.explains(one, bugs) for one in right)) / len(self._decisive)

    def of_large_cases(self, zoo: Sequence[Bug]) -> list[Hypothesis]:
        """Return bugs that explain every failing case, all of them large, but would show in smaller ones that pass."""
        some = [bug for bug in zoo if all(self.evidence.explains(one, (bug,)) for one in self.failing)]
        found = sorted((self.hypothesis((bug,)) for bug in some), key=lambda one: -one.explained)
        return [one for one in found if one.explained == found[0].explained][:SHOWN]

    def hypothesis(self, bugs: Model) -> Hypothesis:
        """Return the Hypothesis of these bugs, with the cases that they explain and miss."""
        explained = [one for one in self.observations if self.evidence.explains(one, bugs)]
        missed = [one for one in self.observations if one not in explained]
        return Hypothesis(
            bugs,
            explained=len(explained),
            total=self.total,
            failing=sum(one in explained for one in self.failing),
            of_failing=len(self.failing),
            misses=tuple(self.evidence.miss(one, bugs) for one in missed),
            others=dict(Counter(name for one in explained for name in self.evidence.others(one, bugs))),
        )


def stage_of(hypotheses: Sequence[Hypothesis]) -> str | None:
    """Return the first wrong stage of the best hypothesis; None if it is of no stage."""
    stages = {bug.stage for one in hypotheses[:1] for bug in one.bugs}
    return min(stages & {*STAGES}, key=STAGES.index, default=None)
