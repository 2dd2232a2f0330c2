"""Thrift: what a question is expected to cost, how long it may take, and which are asked of a subject that is slow.

Compiled subjects take long at the first call of each size, or of each kind of mask. What a call costs is learned from
those before it; where that is much, a probe asks what is cheap, one question more if it must, and the others only if an
answer is not what the model gives, or if there is time for them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from conformance.cases.problem import Problem

DEAR = 0.05
"""Seconds of a question from which on it may be spared: some hundreds of them take as long as may be."""

LONG = 0.02
"""Seconds of a call of new sizes from which on a subject has more time, and is asked as fewer layers."""

PACE = 0.04
"""Seconds of all questions so far, over how many there were, up to which one that is dear is asked all the same."""

LATEST = 15
"""So many calls of a kind tell what the next one costs."""

FIRST_WAIT, LATER_WAIT, TIMES_LONGER = 10.0, 1.0, 20.0
"""Seconds that the first call may take; those after one without an answer, and so many times the longest with one."""

MOST_UNANSWERED, ENOUGH_ALIKE = 8, 2
"""So many calls without an answer in time are made; and so many with the same size, if none with it was answered."""

SURE = 6
"""So many calls of new sizes tell that those of a subject take long."""

AGAIN, OTHER_MASK, NEW = "again", "other mask", "new"
"""Whether calls of such arrays were made before; of such sizes, with another kind of mask; or none of such sizes."""


@dataclass(eq=False)
class Patience:
    """How long a call is waited for, and which calls are not made since those like them had no answer in time."""

    _longest: float = 0.0
    _unanswered: list[frozenset[str]] = field(default_factory=list, repr=False)
    _answered: set[str] = field(default_factory=set, repr=False)

    @property
    def seconds(self) -> float:
        """How long the next call may take."""
        return max(LATER_WAIT if self._unanswered else FIRST_WAIT, TIMES_LONGER * self._longest)

    def note(self, problem: Problem, seconds: float, *, answered: bool) -> None:
        """A call was made: what of its sizes had an answer so far, and what had none."""
        if answered:
            self._longest = max(self._longest, seconds)
            self._answered |= _numbers(problem)
        else:
            self._unanswered.append(_numbers(problem))

    def why_not(self, problem: Problem) -> str | None:
        """Why a call is not made, in words; None if it is."""
        if len(self._unanswered) >= MOST_UNANSWERED:
            return f"{MOST_UNANSWERED} calls had no answer in time, so no more were made"
        for number in sorted(_numbers(problem) - self._answered):
            if sum(number in one for one in self._unanswered) >= ENOUGH_ALIKE:
                return f"calls with {number} had no answer in time, so no more of them were made"
        return None


@dataclass(eq=False)
class Costs:
    """What calls have cost, by how new they were.

    Attributes:
        spared: questions that were not asked, because they are dear and the answers before them were as expected.
        asked: how many were.
        seconds: what these took.
        patience: how long each may take.
    """

    spared: int = 0
    asked: int = 0
    seconds: float = 0.0
    patience: Patience = field(default_factory=Patience)
    _was_slow: bool = field(default=False, repr=False)
    _sizes: set[Hashable] = field(default_factory=set, repr=False)
    _kinds: set[Hashable] = field(default_factory=set, repr=False)
    _seconds: dict[str, list[float]] = field(default_factory=dict, repr=False)

    def newness(self, problem: Problem) -> str:
        """AGAIN, OTHER_MASK or NEW."""
        if _kind(problem) in self._kinds:
            return AGAIN
        return OTHER_MASK if _sizes(problem) in self._sizes else NEW

    def note(self, problem: Problem, seconds: float, *, answered: bool = True) -> None:
        """A call was answered, in so many seconds; or had no answer in them."""
        self.patience.note(problem, seconds, answered=answered)
        if not answered:
            return
        self.asked, self.seconds = self.asked + 1, self.seconds + seconds
        self._seconds.setdefault(self.newness(problem), []).append(seconds)
        self._sizes.add(_sizes(problem))
        self._kinds.add(_kind(problem))
        self._was_slow |= len(self._latest(NEW)) >= SURE and self.slow

    def expected(self, problem: Problem) -> float:
        """The seconds that a call is likely to take; 0 as long as there was none of its kind."""
        seconds = self._latest(self.newness(problem))
        # Of what counts as one kind some are compiled and some are not; the longest may have waited for another reason.
        return sum(seconds[:-1]) / (len(seconds) - 1) if len(seconds) > 1 else seconds[0]

    def is_dear(self, problem: Problem) -> bool:
        """Whether it is spared if it can be: it takes long, and so did those before it."""
        expected = self.expected(problem)
        return expected > DEAR and self.seconds + expected > PACE * (self.asked + self.spared + 1)

    @property
    def slow(self) -> bool:
        """Whether calls of new sizes take long, or did: where some need not be compiled, most others still must."""
        return self._was_slow or self._usual(NEW) > LONG

    @property
    def always_slow(self) -> bool:
        """Whether calls are dear however often they were made."""
        return self.slow and self._usual(AGAIN) > DEAR

    def _usual(self, newness: str) -> float:
        # The lower quartile: the first call of all loads what no later one does, and a busy machine slows some.
        seconds = self._latest(newness)
        return seconds[len(seconds) // 4]

    def _latest(self, newness: str) -> list[float]:
        return sorted(self._seconds.get(newness, [0.0])[-LATEST:])


def answered(
    problems: Sequence[Problem],
    costs: Costs,
    asked: Callable[[Problem], Problem],
    answer: Callable[[Problem], bool | None],
) -> list[Problem]:
    """The problems of a probe that are asked and answered, in their order; the cheapest are asked first.

    Args:
        problems: all of them.
        costs: what calls cost.
        asked: a problem as it is asked.
        answer: asks one. None: it has no answer; else whether that is what was expected.
    """
    order = sorted(range(len(problems)), key=lambda place: costs.expected(asked(problems[place])))
    found: dict[int, bool] = {}
    for place in order:
        if found and all(found.values()) and costs.is_dear(asked(problems[place])):
            costs.spared += 1
            continue
        as_expected = answer(problems[place])
        if as_expected is not None:
            found[place] = as_expected
    return [problems[place] for place in sorted(found)]


def _numbers(problem: Problem) -> frozenset[str]:
    """The sizes of a call, one by one."""
    sizes = problem.sizes
    return frozenset({f"B={sizes.batch}", f"Lq={sizes.query_len}", f"Lk={sizes.key_len}"})


def _sizes(problem: Problem) -> Hashable:
    """What decides the shapes of the arrays of a call, apart from the mask's sources."""
    inputs, sizes = problem.inputs, problem.sizes
    return (
        problem.config,
        (sizes.batch, sizes.query_len, sizes.key_len, inputs.is_split, inputs.is_training, inputs.cotangent is None),
        _shapes((inputs.past_keys, inputs.dropout_keep, inputs.mask.bias)),
    )


def _kind(problem: Problem) -> Hashable:
    """The same with the mask's sources: their shapes, and the values of those that are no arrays."""
    return _sizes(problem), _shapes(vars(problem.inputs.mask).values())


def _shapes(values: Iterable[object]) -> Hashable:
    return tuple(getattr(value, "shape", value) for value in values)
