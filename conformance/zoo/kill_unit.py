"""Cases that kill bugs as a unit of work, for worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from conformance.cases.case import Case
from conformance.cases.table import select as select_cases
from conformance.workers.interpreters import NUMPY, Home, Settings
from conformance.workers.protocol import Unit
from conformance.workers.run import run_units
from conformance.zoo.bug import Bug
from conformance.zoo.kill import Kills, KillTable, as_table, kills_of
from conformance.zoo.registry import select as select_bugs
from mha_core.errors import BackendError

CASE_SECONDS = 600.0
"""Far more than all bugs take on the most expensive case: nobody waits for a process that hangs for ever."""

EXPENSIVE_COST = 20.0
"""How much longer an expensive case takes than another."""


@dataclass(frozen=True)
class KillUnit(Unit):
    """Work for a worker process: cases to run on bugs. A case's answer is its `Kills`, or a line on why it has none.

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
    """Do `conformance.zoo.kill.kill` in worker processes; all bugs must be in the zoo, all cases in the table.

    Raises:
        BackendError: a process died. A table that lacks a case would say that bugs survive.
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
