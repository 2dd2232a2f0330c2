"""Kill: run the suite over the bug zoo. Which case finds which bug, and the fewest cases that find all.

A bug is killed by a case in a dtype if any stage or gradient leaves its allowed error there. Nothing
else counts: a bug that can't be made in a case's sizes is neither killed nor alive there.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache

from conformance.any_numbers import any_numbers
from conformance.bounds.precision import Precision
from conformance.cases.case import Case
from conformance.cases.table import select as select_cases
from conformance.judging.expected import expected
from conformance.workers.interpreters import NUMPY, Home, Settings
from conformance.workers.protocol import Unit
from conformance.workers.run import run_units
from conformance.zoo.bug import Bug, DoesNotApply
from conformance.zoo.registry import select as select_bugs
from conformance.zoo.shows import Shows
from mha_core.errors import BackendError

DTYPES = ("float64", "float32")
"""In which every case is run."""


@dataclass(frozen=True, eq=False)
class KillTable:
    """A table of the cases that kill (detect) each bug in each dtype, with the first stage that differs.

    Attributes:
        first_stages: bug id -> case id -> each dtype with a difference -> first stage that differs, or "gradients".
        impossible: (bug id, case id) of each case in which the bug can't be made.
    """

    bugs: tuple[Bug, ...]
    cases: tuple[Case, ...]
    dtypes: tuple[str, ...]
    first_stages: Mapping[str, Mapping[str, Mapping[str, str]]]
    impossible: frozenset[tuple[str, str]]

    def killers(self, bug: Bug) -> list[str]:
        """Return the ids of the cases that kill the bug, in any dtype, in the order of the table."""
        return [case.id for case in self.cases if self.first_stages[bug.id].get(case.id)]

    def killed_by(self, case: Case) -> list[str]:
        """Return the ids of the bugs that the case kills, in any dtype, in the order of the table."""
        return [bug.id for bug in self.bugs if self.first_stages[bug.id].get(case.id)]

    def alone(self, case: Case) -> list[str]:
        """Return the ids of the bugs that only this case kills."""
        return [bug.id for bug in self.bugs if self.killers(bug) == [case.id]]

    def to_be_killed(self) -> list[Bug]:
        """Return every bug whose results can differ from the reference's, that is, without a reason in `equivalent`."""
        return [bug for bug in self.bugs if not bug.equivalent]

    def not_killed(self) -> list[Bug]:
        """Return the bugs of `to_be_killed` that no case kills."""
        return [bug for bug in self.to_be_killed() if not self.killers(bug)]

    def killed_equivalents(self) -> list[Bug]:
        """Return the bugs that are declared equivalent, but that some case kills."""
        return [bug for bug in self.bugs if bug.equivalent and self.killers(bug)]

    def stages(self, bug: Bug, dtype: str) -> set[str]:
        """Return the set of first stages that differ, over all cases that kill the bug in `dtype`."""
        return {stages[dtype] for stages in self.first_stages[bug.id].values() if dtype in stages}

    def smallest_set(self) -> tuple[str, ...]:
        """Return the ids of the fewest cases that together kill (detect) every bug that any case kills; cheap first."""
        by_cost = sorted(self.cases, key=lambda case: case.expensive)
        killers = [frozenset(self.killers(bug)) for bug in self.to_be_killed()]
        return smallest_cover([case.id for case in by_cost], killers)


def kill(bugs: Sequence[Bug], cases: Sequence[Case], progress: Callable[[Case], None] = lambda case: None) -> KillTable:
    """Return a KillTable: which cases detect each bug, run in every dtype. Call `progress` with each case done."""
    kills = []
    for case in cases:
        kills.append(kills_of(bugs, case))
        progress(case)
    return as_table(bugs, cases, kills)


@dataclass(frozen=True)
class Kills:
    """A record of the bugs that one case kills (detects).

    Attributes:
        first_stages: bug id -> dtype -> the first stage that differs; {} for a bug that is not killed.
        impossible: the ids of the bugs that can't be made in this case.
    """

    first_stages: Mapping[str, Mapping[str, str]]
    impossible: tuple[str, ...]


def kills_of(bugs: Sequence[Bug], case: Case) -> Kills:
    """Return which bugs one case kills (detects), in which dtypes and stages. Every bug is run in every dtype."""
    first_stages, impossible = {}, []
    with any_numbers:  # once for all runs
        for bug in bugs:
            try:
                found = {dtype: first_difference(bug, case, dtype) for dtype in DTYPES}
            except DoesNotApply:
                impossible.append(bug.id)
                continue
            first_stages[bug.id] = {dtype: stage for dtype, stage in found.items() if stage is not None}
    return Kills(first_stages, tuple(impossible))


def as_table(bugs: Sequence[Bug], cases: Sequence[Case], kills: Sequence[Kills]) -> KillTable:
    """Return the KillTable of these rows, in the order of `cases`."""
    first_stages: dict[str, dict[str, Mapping[str, str]]] = {bug.id: {} for bug in bugs}
    for case, found in zip(cases, kills, strict=True):
        for bug_id, stages in found.first_stages.items():
            first_stages[bug_id][case.id] = stages
    impossible = frozenset(
        (bug_id, case.id) for case, found in zip(cases, kills, strict=True) for bug_id in found.impossible
    )
    return KillTable(tuple(bugs), tuple(cases), DTYPES, first_stages, impossible)


def first_difference(bug: Bug, case: Case, dtype: str) -> str | None:
    """Return the first stage that the bug makes wrong; "gradients" if only gradients are wrong; None if nothing is.

    Raises DoesNotApply where the bug can't be made.
    """
    return _shows(case, dtype).first_difference(bug)


@lru_cache(maxsize=256)
def _shows(case: Case, dtype: str) -> Shows:
    return Shows.of(expected(case, Precision.of(dtype)), dtype)


def smallest_cover(names: Sequence[str], sets: Collection[frozenset[str]]) -> tuple[str, ...]:
    """Return the fewest names such that every non-empty set holds at least one of them.

    >>> smallest_cover(["a", "b", "c"], [frozenset("ab"), frozenset("bc"), frozenset("c"), frozenset()])
    ('a', 'c')
    """
    distinct = {found for found in sets if found}
    # A name in a set is also in every set that contains that set, so only minimal sets need checking.
    minimal = [found for found in distinct if not any(other < found for other in distinct)]
    rank = {name: position for position, name in enumerate(names)}
    minimal.sort(key=lambda found: (len(found), sorted(rank[name] for name in found)))
    for size in range(len(names) + 1):
        chosen = _cover(minimal, size, rank)
        if chosen is not None:
            return tuple(sorted(chosen, key=rank.__getitem__))
    raise AssertionError("all names together hold one of every set")  # unreachable


def _cover(sets: list[frozenset[str]], size: int, rank: Mapping[str, int]) -> tuple[str, ...] | None:
    """`size` names or fewer that hit every set, or None. `sets` is sorted by size."""
    if not sets:
        return ()
    if _disjoint(sets) > size:  # disjoint sets need a name each
        return None
    for name in sorted(sets[0], key=rank.__getitem__):
        rest = _cover([found for found in sets if name not in found], size - 1, rank)
        if rest is not None:
            return (name, *rest)
    return None


def _disjoint(sets: Sequence[frozenset[str]]) -> int:
    """The number of pairwise disjoint sets found by taking each set that shares no name with those taken before it.

    At least so many names are needed to hit all sets.
    """
    count, seen = 0, frozenset[str]()
    for found in sets:
        if not found & seen:
            count, seen = count + 1, seen | found
    return count


# Cases that kill bugs as a unit of work, for worker processes.


CASE_SECONDS = 600.0
"""Far more than all bugs take on the most expensive case: nobody waits for a process that hangs for ever."""

EXPENSIVE_COST = 20.0
"""Time of an expensive case / time of another."""


@dataclass(frozen=True)
class KillUnit(Unit):
    """A unit of work for a worker process: cases to run with bugs. Each case gives `Kills`, or a line on its failure.

    Args:
        bugs, cases: ids of bugs of the zoo, and of cases of the table.
        expensive: whether the cases are expensive.
    """

    bugs: tuple[str, ...]
    cases: tuple[str, ...]
    expensive: bool = False

    @property
    def home(self) -> Home:
        return Home(NUMPY, CASE_SECONDS)

    @property
    def cost(self) -> float:
        return len(self.cases) * (EXPENSIVE_COST if self.expensive else 1.0)

    def __len__(self) -> int:
        return len(self.cases)

    def run(self, start: int) -> Iterator[Kills]:
        bugs = select_bugs(self.bugs)
        for case in self.cases[start:]:
            yield kills_of(bugs, select_cases((case,))[0])

    def lost(self, item: int, reason: str) -> str:
        return reason


def kill_apart(
    bugs: Sequence[Bug],
    cases: Sequence[Case],
    executor: Executor,
    settings: Settings,
    *,
    progress: Callable[[Case], None] = lambda case: None,
) -> KillTable:
    """Return a KillTable, as `kill` does, from worker processes. Bugs must be in the zoo, and cases in the table.

    Raises:
        BackendError: a process died, so that a case has no result.
    """
    names = tuple(bug.id for bug in bugs)
    # Expensive ones begin first, so that nobody waits for the last of them alone.
    order = sorted(range(len(cases)), key=lambda number: not cases[number].expensive)
    units = [KillUnit(names, (cases[number].id,), cases[number].expensive) for number in order]
    found: dict[int, Kills] = {}
    for unit, _, kills in run_units(units, executor, settings):
        case = cases[order[unit]]
        if isinstance(kills, str):
            raise BackendError(f"case {case.id} could not be run over the bugs: {kills}")
        found[order[unit]] = kills
        progress(case)
    return as_table(bugs, cases, [found[number] for number in range(len(cases))])
