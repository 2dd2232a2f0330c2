"""Judge a learner's whole layer, in a worker process: as `mha check --subject` does, the first cases first."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.case_unit import CaseUnit
from conformance.cases.table import all_cases, select
from conformance.diagnosis.diagnose import diagnose
from conformance.judging.result import Result
from conformance.subjects.load import LoadedSubject, load_subject
from conformance.zoo.bug import Bug
from mha.learn.running.attempt import Unfit, captured, found
from mha_core.errors import SpecError, shown

SECONDS = 10.0
"""Seconds that one case may take."""


@dataclass(frozen=True)
class Layered:
    """What came of a layer.

    Attributes:
        result: the first one that is not right; None if all are.
        right: how many cases are right.
        unsupported: how many it can't express.
        reason: why it can't be asked at all, in one line.
        printed: the beginning of what it printed.
    """

    result: Result | None = None
    right: int = 0
    unsupported: int = 0
    reason: str = ""
    printed: str = ""


def judged(path: str, subject: str, first: tuple[str, ...]) -> Layered:
    """Judge the first cases, and the others where these are right; it ends at the first that is not."""
    with captured() as printed:
        try:
            loaded = _loaded(path, subject)
        except (SpecError, Unfit) as error:
            return Layered(reason=shown(str(error), 300), printed=printed())
        right = unsupported = 0
        order = {id: number for number, id in enumerate(first)}
        cases = sorted((case.id for case in all_cases()), key=lambda id: order.get(id, len(order)))
        for id, result in zip(cases, CaseUnit(loaded, tuple(cases)).run(0), strict=True):
            assert result is not None
            if result.status == "unsupported":
                unsupported += 1
                if id in first:
                    return Layered(result, right, unsupported, printed=printed())
            elif result.status != "equal":
                return Layered(result, right, unsupported, printed=printed())
            else:
                right += 1
        return Layered(None, right, unsupported, printed=printed())


def diagnosed(path: str, subject: str, first: tuple[str, ...]) -> tuple[tuple[Bug, ...], ...] | str:
    """The explanations that `mha diagnose` finds in the first cases, or why it can't be asked.

    Bugs that were measured are on no file, and steps can't be sent to another process: so all are sent without steps.
    """
    with captured():
        try:
            found = diagnose(_loaded(path, subject), select(first), experiments=True)
            explained = found.explanations or found.partly
            sent = {bug: replace(bug, forward={}, backward={}) for one in explained for bug in one.bugs}
            return tuple(tuple(sent[bug] for bug in one.bugs) for one in explained)
        except (SpecError, Unfit) as error:
            return shown(str(error), 300)


def _loaded(path: str, subject: str) -> LoadedSubject:
    """The subject of a file, imported anew."""
    found(path, subject)  # words for a file that is empty, or can't be imported
    file = Path(path)
    sys.modules.pop(file.stem, None)
    os.chdir(file.parent)
    if str(file.parent) in sys.path:
        sys.path.remove(str(file.parent))
    sys.path.insert(0, str(file.parent))
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        return load_subject(f"{file.stem}:{subject}", "float64", time_limit=SECONDS)
    finally:
        sys.dont_write_bytecode = bytecode
