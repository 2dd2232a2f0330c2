"""Cases on one subject as a unit of work, for worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.random import case_from_text, is_case_text
from conformance.cases.sequence import Asked
from conformance.deviations.known import Deviations
from conformance.judging.expected import Shelf, keep_answers
from conformance.judging.result import Result
from conformance.runner import CaseRunner
from conformance.workers.described import home_of, live, relative_cost
from conformance.workers.interpreters import Home, Settings
from conformance.workers.protocol import code_hash, project_version
from conformance.workers.run import run_units
from conformance.workers.unit import Unit
from mha_core.files.kept import Kept, folder_for, kept_folder, machine

CHUNK = 21
"""Cases of one unit. Few enough that workers finish together, and many enough that asking for them costs nothing."""


@dataclass(frozen=True)
class CaseUnit(Unit):
    """Cases on one subject; the answer to each is its Result.

    Args:
        subject: as this process knows it; see `conformance.workers.described`.
        cases: ids of the table or of random cases, or whole cases that can be pickled.
        before: the case before these. It is asked first, so that it can be asked again after the first of them.
        known: the deviations that must be seen.
    """

    subject: Any
    cases: tuple[str | Asked, ...]
    before: str | Asked | None = None
    known: Deviations | None = None

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
        keep_answers(_shelf())
        runner = CaseRunner(live(self.subject), self.known)
        for item, case in enumerate(self._asked[start:], start=start):
            result = runner.run(_case(case))
            yield result if self._counts(item) else None

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
) -> Iterator[tuple[int, Result]]:
    """Judge every (case, subject) in worker processes; yields (its number, Result) as they come.

    Args:
        runs: those of one subject stand together, as equal objects.
        executor, settings: where, and with what.
        known: the deviations that must be seen.
        whole: whether a case is sent itself, because no table has it by its id.
    """
    units: list[CaseUnit] = []
    numbers: list[list[int]] = []
    for subject, group in groupby(enumerate(runs), key=lambda run: run[1][1]):
        asked = list(group)
        for start in range(0, len(asked), CHUNK):
            chunk = asked[start : start + CHUNK]
            names = tuple(_named(case, whole) for _, (case, _) in chunk)
            last = asked[start - 1][1][0] if start else None
            before = _named(last, whole) if isinstance(last, Case) else None  # a sequence is not asked again
            units.append(CaseUnit(subject, names, before, known))
            numbers.append([number for number, _ in chunk])
    for unit, item, result in run_units(units, executor, settings):
        if result is not None:
            yield numbers[unit][item - (units[unit].before is not None)], result


def _named(case: Asked, whole: bool) -> str | Asked:
    return case if whole else case.id


def _case(named: str | Asked) -> Asked:
    return _by_id(named) if isinstance(named, str) else named


@cache
def _by_id(name: str) -> Asked:
    from conformance.cases.table import select_asked

    return case_from_text(name) if is_case_text(name) else select_asked((name,))[0]


@cache
def _shelf() -> Shelf | None:
    """Where this worker finds what others have expected; None if nothing is to be kept."""
    folder = kept_folder()
    if folder is None:
        return None
    threads = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(("OMP_", "OPENBLAS_"))]
    versions = {"mha-parity": project_version(), "numpy": np.__version__}
    return Shelf(Kept(folder / "expected" / folder_for(versions, (code_hash(), *threads, machine()))))
