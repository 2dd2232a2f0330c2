"""Hypotheses: one bug or a few of them, counted over the cases, and the search for the best ones.

A hypothesis is ranked by the failing cases that it explains, less the passing ones that it breaks. A bug that changes
no case "explains" every passing one, so it gains nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from math import ceil

from conformance.diagnosis.evidence import Evidence, Miss
from conformance.diagnosis.observations import Observation
from conformance.measure.search.ranking import preference
from conformance.zoo.bug import Bug, compatible
from mha_core import STAGES

NAMED = 0.75
"""The share of the failing cases that a hypothesis must explain, those that it breaks taken off, to be named though
not all are. Layers of other people's that have a bug of the zoo differ from it in extreme cases too (NaN, an infinity,
empty rows, sizes of 0): up to a quarter of the table is about these. Bugs of no zoo stay below a half."""

CLOSEST = 0.25
"""The share that it must explain to be listed as close. By chance a bug explains a few failing cases in which there is
little to tell: one key alone, rows without any. They are less than a tenth."""

CLOSEST_LEAST = 2
"""Least number of cases that it must explain to be listed, if more than one fails."""

PRICE = 1.0
"""How many more cases a hypothesis must explain for each further bug."""

MOST_PAIRS_TRIED = 5000

SAMPLE = 12
"""After experiments, which meet faults one at a time, a bug is counted only if it explains one of so many failing
cases, chosen from all of them evenly."""

MOST_BUGS = 4
BEAM = 4
"""Most bugs in a hypothesis, and the number of hypotheses that the beam search follows."""


@dataclass(frozen=True)
class Hypothesis:
    """One or several bugs, and the cases that they explain. Without a bug, only the precision is wrong.

    Attributes:
        explained, total: the number of cases that it explains, and of all cases.
        failing, of_failing: the number of failing cases that it explains, and of all failing cases.
        misses: the cases that it does not explain, failing ones first, each with the array that shows it.
        others: array -> number of explained cases in which the subject's array differs from the hypothesis': such
            differences do not change the outputs.
        first_stages: number of cases in which it explains the first wrong stage, but not the output.
    """

    bugs: tuple[Bug, ...]
    explained: int
    total: int
    failing: int = 0
    of_failing: int = 0
    misses: tuple[Miss, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)
    first_stages: int = 0

    @property
    def name(self) -> str:
        return " + ".join(bug.id for bug in self.bugs)

    @property
    def complete(self) -> bool:
        """Whether it explains every case."""
        return self.explained == self.total


@dataclass(frozen=True)
class Score:
    """The rank of a hypothesis; smaller keys are better.

    Attributes:
        credit: number of explained cases; one whose first wrong stage alone is explained counts for a half.
        whole: number of cases in which the hypothesis gives all exposed arrays.
    """

    bugs: tuple[Bug, ...]
    credit: float
    whole: int
    total: int

    @property
    def key(self) -> tuple[bool, float, int, int, tuple[object, ...]]:
        complete = self.credit == self.total
        paid = self.credit - (0.0 if complete else PRICE * (len(self.bugs) - 1))
        return not complete, -paid, -self.whole, len(self.bugs), preference(self.bugs)

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to explain."""
        return self.whole == self.total


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
        self.total = len(self.observations)
        self.failing = frozenset(index for index, one in enumerate(self.observations) if evidence.wrong(one))
        self._decisive = self._ordinary(0) or self._ordinary(1) or self.failing
        # Where cheap cases fail, what bugs change is told by these alone.
        told = [index for index in self.failing if not self.observations[index].case.expensive]
        self._telling = [
            index
            for index, one in enumerate(self.observations)
            if not one.case.expensive or (not told and index in self.failing)
        ]
        self._shows_stages = any(name in STAGES and name != "output" for one in observations for name in one.arrays)
        self.changes: Callable[[Bug], frozenset[int]] = cache(self._changed_by)
        """Positions of the cases in which a bug changes an array that the subject exposes."""
        self._scores: dict[tuple[Bug, ...], Score] = {}

    def _ordinary(self, extremity: int) -> frozenset[int]:
        return frozenset(index for index in self.failing if self.observations[index].extremity <= extremity)

    @property
    def only_large(self) -> bool:
        """Whether only expensive cases fail, as for a bug that acts in large cases alone."""
        return all(self.observations[index].case.expensive for index in self.failing)

    # Those that explain everything -------------------------------------------------------------------

    def wholly(self, candidates: Iterable[tuple[Bug, ...]]) -> list[tuple[Bug, ...]]:
        """The candidates that give all exposed arrays in every case."""
        whole = self.evidence.whole
        return [bugs for bugs in candidates if all(whole(observation, bugs) for observation in self.observations)]

    def promising_pairs(self, zoo: Sequence[Bug]) -> list[tuple[Bug, Bug]]:
        """Pairs that together touch every failing case, those that touch the fewest passing ones first.

        A bug that touches a passing case may be in the pair only if the other one undoes it there,
        so such pairs come last.
        """
        failing = self.failing & set(self._telling)
        touching = [bug for bug in zoo if self.changes(bug) & failing]
        pairs = []
        for first, second in combinations(touching, 2):
            touched = self.changes(first) | self.changes(second)
            if failing <= touched and (compatible(first, second) or self._may_share_a_step(first, second)):
                pairs.append((len(touched - failing), first, second))
        pairs.sort(key=lambda pair: pair[0])
        return [(first, second) for _, first, second in pairs[:MOST_PAIRS_TRIED]]

    def _may_share_a_step(self, first: Bug, second: Bug) -> bool:
        """Whether, of two bugs of one step, each explains the cases that it alone changes; none undoes the other."""
        return all(
            self.evidence.whole(self.observations[index], (bug,))
            for bug, other in ((first, second), (second, first))
            for index in sorted(self.changes(bug) - self.changes(other))
        )

    def _changed_by(self, bug: Bug) -> frozenset[int]:
        return frozenset(index for index in self._telling if self.evidence.changes(self.observations[index], bug))

    # Those that explain the most ---------------------------------------------------------------------

    def grow(
        self,
        zoo: Sequence[Bug],
        models: Iterable[tuple[Bug, ...]] = (),
        progress: Callable[[int], None] = lambda size: None,
        *,
        sampled: bool = False,
    ) -> list[Score]:
        """Hypotheses of up to MOST_BUGS bugs, best first: a beam search that adds what explains the most.

        It starts from single bugs, and from `models`, which may be larger. With `sampled` a bug must explain one of
        SAMPLE failing cases.

        A layer that was never compared with the definition tends to differ in several places at once.
        """
        nothing = float(self.total - len(self.failing))  # what no bug at all explains
        singles = [(bug,) for bug in zoo if not sampled or self._explains_some(bug)]
        beam = self._best(self._scored([*singles, *(model for model in models if model)], nothing))
        for size in range(2, MOST_BUGS + 1):
            if not beam or beam[0].settled:
                break
            progress(size)
            larger = [one for base in beam for one in self._scored(self._extensions(base, zoo), base.credit, base)]
            best = self._best([*beam, *larger])
            if best == beam:
                break
            beam = best
        return beam

    def _explains_some(self, bug: Bug) -> bool:
        failing = [index for index in self._telling if index in self.failing]
        some = failing[:: ceil(len(failing) / SAMPLE) or 1]
        return any(self.evidence.credit(self.observations[index], (bug,)) > 0.0 for index in some)

    def _extensions(self, base: Score, zoo: Sequence[Bug]) -> Iterator[tuple[Bug, ...]]:
        """Hypotheses with one more bug than `base`, which explains some case that `base` does not."""
        open_cases = [index for index in self._telling if not self.evidence.whole(self.observations[index], base.bugs)]
        wrong_steps = {
            index: self.evidence.wrong_steps(self.observations[index], base.bugs) if self._shows_stages else []
            for index in open_cases
        }
        for bug in zoo:
            if bug not in base.bugs:
                bugs = tuple(sorted({*base.bugs, bug}, key=lambda one: one.id))
                near = (index for index in open_cases if self._may_help(bug, index, wrong_steps[index]))
                if any(self._improves(self.observations[index], bugs, base.bugs) for index in near):
                    yield bugs

    def _may_help(self, bug: Bug, index: int, wrong_steps: Sequence[str]) -> bool:
        """Whether one more bug can mend a case in which these stages are still wrong, given those before them."""
        if index not in self.changes(bug):
            return False
        return not wrong_steps or any(
            self.evidence.touches(self.observations[index], stage, bug) for stage in wrong_steps
        )

    def _improves(self, observation: Observation, bugs: tuple[Bug, ...], base: tuple[Bug, ...]) -> bool:
        credit = self.evidence.credit(observation, bugs)
        return credit > self.evidence.credit(observation, base) or self.evidence.whole(observation, bugs)

    def _scored(
        self, candidates: Iterable[tuple[Bug, ...]], floor: float, base: Score | None = None
    ) -> Iterator[Score]:
        """The scores of those that explain more than `floor` cases, or as many as `base` and more of them wholly."""
        for bugs in candidates:
            score = self._score(bugs, floor)
            if score is not None and (score.credit > floor or (base is not None and score.whole > base.whole)):
                yield score

    def _score(self, bugs: tuple[Bug, ...], floor: float) -> Score | None:
        """The score, or None as soon as it can't reach `floor` any more."""
        if bugs not in self._scores:
            possible = float(self.total)
            whole = 0
            for observation in self.observations:
                credit = self.evidence.credit(observation, bugs)
                whole += credit == 1.0 and self.evidence.whole(observation, bugs)
                possible -= 1.0 - credit
                if possible < floor:
                    return None
            self._scores[bugs] = Score(bugs, possible, whole, self.total)
        return self._scores[bugs]

    def of_large_cases(self, zoo: Sequence[Bug]) -> list[Score]:
        """Bugs that explain every failing case but would show in smaller ones that pass; those with fewest first.

        It is used where only large cases fail, because a layer may take another path for large sizes.
        """
        failing = [self.observations[index] for index in self.failing]
        some = [(bug,) for bug in zoo if all(self.evidence.credit(one, (bug,)) == 1.0 for one in failing)]
        return self._best(self._scored(some, -1.0))

    def _best(self, scores: Iterable[Score]) -> list[Score]:
        return sorted(set(scores), key=lambda one: one.key)[:BEAM]

    # What is told of them ----------------------------------------------------------------------------

    def hypothesis(self, bugs: tuple[Bug, ...]) -> Hypothesis:
        """The Hypothesis of these bugs, with the cases that they explain and miss."""
        credits = [self.evidence.credit(observation, bugs) for observation in self.observations]
        missed = [one for one, credit in zip(self.observations, credits, strict=True) if credit < 1.0]
        explained = [one for one in self.observations if one not in missed]
        others = dict(Counter(name for one in explained for name in self.evidence.others(one, bugs)))
        return Hypothesis(
            bugs,
            explained=self.total - len(missed),
            total=self.total,
            failing=sum(credits[index] == 1.0 for index in self.failing),
            of_failing=len(self.failing),
            misses=tuple(self.evidence.miss(observation, bugs) for observation in missed),
            others=others,
            first_stages=sum(0.0 < credit < 1.0 for credit in credits),
        )

    def gain(self, score: Score) -> float:
        """Failing cases explained, less passing ones broken, as a share of the failing ones; all of them ordinary."""
        explained = sum(self.evidence.credit(self.observations[index], score.bugs) for index in self._decisive)
        broken = sum(
            1.0 - self.evidence.credit(observation, score.bugs)
            for index, observation in enumerate(self.observations)
            if index not in self.failing
        )
        return (explained - broken) / len(self._decisive)

    def is_named(self, score: Score) -> bool:
        """Whether it explains enough to be named as the cause."""
        return self.gain(score) >= NAMED and self._explains_enough(score)

    def is_close(self, score: Score) -> bool:
        """Whether it explains enough to be listed."""
        return self.gain(score) >= CLOSEST and self._explains_enough(score)

    def _explains_enough(self, score: Score) -> bool:
        failing = [self.observations[index] for index in self.failing]
        explained = sum(self.evidence.credit(observation, score.bugs) > 0.0 for observation in failing)
        return explained >= min(CLOSEST_LEAST, ceil(len(failing) / 2))
