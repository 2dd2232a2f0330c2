"""Cases on one subject as a unit of work, for worker processes."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from threading import Lock
from typing import Any
from uuid import uuid4

import numpy as np

from conformance.cases.case import Case
from conformance.cases.random import case_from_text, is_case_text, shrink
from conformance.cases.sequence import Asked
from conformance.deviations.known import Deviations
from conformance.judging.expected import Shelf, keep_answers
from conformance.judging.repeats import Again
from conformance.judging.result import Result
from conformance.plan import Plan
from conformance.runner import CaseRunner, run_case
from conformance.workers.described import home_of, relative_cost
from conformance.workers.interpreters import Home, Settings
from conformance.workers.protocol import Unit, code_hash, project_version
from conformance.workers.run import run_units
from mha_core.files.kept import Kept, folder_for, kept_folder, machine

_runners: dict[str, CaseRunner] = {}
"""In a worker: series of the last unit -> what judged it."""

FAILING = ("different", "failed")
"""The statuses of a case that is shrunk."""

CHUNK = 21
"""Cases of one unit. Few enough that workers finish together, and many enough that asking for them costs nothing."""


LATE = 3
"""So many cases without an answer in time, and none with one, and a subject is asked no more."""

NOT_ASKED = "not asked: "
"""The beginning of the message of a case that a subject was not asked for this reason."""

TOO_LATE = re.compile(r"(?:call 1 of [\w-]+ \(.*?\): )?(no (?:answer|sign of life) (?:within [\d.e+-]+ s|in time))")
"""The message of a case that had no answer in time."""


def too_late(result: Result) -> str:
    """Return the timeout that a result's message reports, such as "no answer within 60 s"; "" if there is none."""
    found = TOO_LATE.match(result.message) if result.status == "failed" else None
    return "" if found is None else found[1]


class _Patience:
    """Says which subjects are not asked any more, in the threads that ask them; a subject is known by its home."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._asked: Counter[Home] = Counter()
        self._late: Counter[Home] = Counter()
        self._ended: dict[Home, str] = {}

    def why_not(self, home: Home, result: Result | None) -> str:
        """Return why a subject is asked no more, after this result of it; "" as long as it is."""
        with self._lock:
            if result is not None and result.status != "unsupported" and home not in self._ended:
                self._asked[home] += 1
                if late := too_late(result):
                    self._late[home] += 1
                    if self._late[home] == LATE:
                        counts = f"{LATE} of {self._asked[home]} cases"
                        self._ended[home] = f"{NOT_ASKED}{late} in {counts} (--time-limit)"
                elif result.status != "failed":
                    self._ended[home] = ""  # it answers: whatever it is slow in, it is asked all
            return self._ended.get(home, "")


@dataclass(frozen=True)
class CaseUnit(Unit):
    """A unit of work for a worker process: cases to run on one subject (the tested layer). Each case gives a Result.

    Args:
        subject: the subject; for one in another process, its stand-in from `conformance.workers.described`.
        cases: ids of cases, or picklable case objects.
        before: a case to run first, without a Result, so that it can be repeated after the first of `cases`, or None.
        known: the table of known deviations. Deviations that the table lists for these cases must occur.
        again: how a right answer is checked by repeated calls (see `conformance.judging.repeats`).
        series: a name that all units of one run and one subject share; "" for a single unit.
    """

    subject: Any
    cases: tuple[str | Asked, ...]
    before: str | Asked | None = None
    known: Deviations | None = None
    series: str = ""
    again: Again = "in every way"

    @property
    def home(self) -> Home:
        return home_of(self.subject)

    @property
    def cost(self) -> float:
        return len(self.cases) * relative_cost(self.subject)

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def _asked(self) -> tuple[str | Asked, ...]:
        """All cases; the one before these is an item of its own, whose answer is None."""
        return self.cases if self.before is None else (self.before, *self.cases)

    def _counts(self, item: int) -> bool:
        return self.before is None or item > 0

    def run(self, start: int) -> Iterator[Result | None]:
        keep_answers(shelf())
        runner = self._runner()
        for item, case in enumerate(self._asked[start:], start=start):
            found = case_by_id(case) if isinstance(case, str) else case
            if self._counts(item):
                yield runner.run(found)
            else:
                if runner.last != found.id:  # else it has been asked, in the unit before
                    runner.run(found)
                yield None

    def _runner(self) -> CaseRunner:
        """What judges the subject: the same as in the last unit, if that was of the same series."""
        if not self.series or self.series not in _runners:
            _runners.clear()
            _runners[self.series] = CaseRunner(self.subject, self.known, self.again)
        return _runners[self.series]

    def lost(self, item: int, reason: str) -> Result | None:
        return self._failed(self._asked[item], reason) if self._counts(item) else None

    def _failed(self, case: str | Asked, reason: str) -> Result:
        subject = self.subject
        return Result(
            case if isinstance(case, str) else case.id,
            subject.name,
            subject.dtype,
            subject.device,
            "failed",
            message=reason,
            selector=getattr(subject, "selector", ""),
        )


def run_apart(
    runs: Sequence[tuple[Asked, Any]],
    executor: Executor,
    settings: Settings,
    known: Deviations | None = None,
    *,
    whole: bool = False,
    plan: Plan | None = None,
) -> Iterator[tuple[int, Result]]:
    """Run every (case, subject) pair in worker processes; yield (index in `runs`, Result) in order of completion.

    If LATE cases of a subject time out before it answers one, a `Local` executor skips the subject's other cases.
    Those have Results with the status "failed" and a message that says why.

    Args:
        runs: the pairs (case, subject). Pairs with equal subjects must be neighbours.
        executor, settings: what runs the work, and what worker processes are started with.
        known: the table of known deviations. Deviations that the table lists for these cases must occur.
        whole: whether case objects are sent instead of ids, as needed for cases that are in no table.
        plan: says how right answers are checked by repeated calls. Default: in every way.
    """
    units: list[CaseUnit] = []
    numbers: list[list[int]] = []
    for subject, group in groupby(enumerate(runs), key=lambda run: run[1][1]):
        asked, series = list(group), uuid4().hex
        again: Again = "in every way" if plan is None else plan.again(subject)
        for start in range(0, len(asked), CHUNK):
            chunk = asked[start : start + CHUNK]
            names = tuple(_named(case, whole) for _, (case, _) in chunk)
            has_case = again not in ("in one way", "never") and any(isinstance(case, Case) for _, (case, _) in chunk)
            earlier = reversed(asked[:start] if has_case else ())  # its sequences are not asked again
            before = next((case for _, (case, _) in earlier if isinstance(case, Case)), None)
            named = None if before is None else _named(before, whole)
            units.append(CaseUnit(subject, names, named, known, series, again))
            numbers.append([number for number, _ in chunk])
    patience = _Patience()
    for unit, item, result in run_units(
        units, executor, settings, lambda number, result: patience.why_not(units[number].home, result)
    ):
        if result is not None:
            yield numbers[unit][item - (units[unit].before is not None)], result


def smallest(case: str, subject: Any) -> Result:
    """Return a subject's Result in the smallest failing case found by shrinking the random case with the id `case`."""
    small = shrink(case_from_text(case), lambda other: run_case(other, subject).status in FAILING)
    return run_case(small, subject)


def _named(case: Asked, whole: bool) -> str | Asked:
    return case if whole else case.id


@cache
def case_by_id(name: str) -> Asked:
    """Return the case, random case or sequence of calls that has this id."""
    from conformance.cases.table import select_asked

    return case_from_text(name) if is_case_text(name) else select_asked((name,))[0]


@cache
def shelf() -> Shelf | None:
    """Return the cache on disk of expected answers, shared by all processes; None if MHA_COMPILE_CACHE is "off"."""
    folder = kept_folder()
    if folder is None:
        return None
    threads = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(("OMP_", "OPENBLAS_"))]
    versions = {"mha-parity": project_version(), "numpy": np.__version__}
    return Shelf(Kept(folder / "expected" / folder_for(versions, (code_hash(), *threads, machine()))))
