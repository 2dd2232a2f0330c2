"""Diagnoses as texts, which can be made in a process of ours where the subject lives in this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from conformance.case_unit import case_by_id
from conformance.cases.case import Case
from conformance.deviations.known import Deviations
from conformance.diagnosis.diagnose import diagnose
from conformance.diagnosis.observations import listed_in
from conformance.diagnosis.text import ENDED, describe
from conformance.measure.probes import select_probes
from conformance.measure.search import measure
from conformance.measure.text import probe_text
from conformance.subjects.subject import Subject
from conformance.workers.execute import call
from conformance.workers.interpreters import Settings
from mha_core.errors import one_line

Answer = TypeVar("Answer")

Progress = Callable[[str], None]


def _nothing(what: str) -> None:
    pass


def diagnosed(
    subject: Subject,
    cases: Sequence[str],
    table: Deviations,
    experiments: bool = True,
    details: bool = False,
    *,
    progress: Progress = _nothing,
) -> tuple[str, bool]:
    """The diagnosis of a subject in words, and whether it differs.

    Args:
        subject, experiments, progress: as of `conformance.diagnosis.diagnose.diagnose`.
        cases: the ids of its cases, of the table or of random ones.
        table: the known deviations; what they account for is no bug.
        details: also what each probe showed.

    Raises:
        SpecError: the subject could not run a single case.
    """
    asked = [case for id in cases if isinstance(case := case_by_id(id), Case)]
    known = listed_in(table, subject)
    found = diagnose(subject, asked, experiments=experiments, known=known, progress=progress)
    return describe(found, details=details), found.differs


def explained(way: Callable[..., tuple[str, bool]], *arguments: Any) -> str:
    """The words of `diagnosed`, for a verdict that stands already: if it raises, one line says so.

    Args:
        way, arguments: what calls it.
    """
    try:
        return way(*arguments)[0]
    except Exception as error:  # whatever it is, it is no verdict
        return f"{ENDED} {one_line(error)}"


def probed(subject: Subject, patterns: Sequence[str], *, progress: Progress = _nothing) -> tuple[str, bool, bool]:
    """What some probes show, in words; whether one of them differs; and whether the subject answers at all."""
    measured = measure(subject, probes=select_probes(patterns), progress=progress)
    shown = measured.outcomes
    text = "\n\n".join(probe_text(measured, outcome) for outcome in shown)
    return text, any(one.differing for one in shown), bool(measured.asker.configs)


def beside_no_subject(
    settings: Settings, progress: Progress, function: Callable[..., Answer], *arguments: Any
) -> Answer:
    """What one of the functions above gives: in this process, or in one of ours if subjects live in this one."""
    if settings.here:
        found: Answer = call(settings, function, *arguments)
        return found
    return function(*arguments, progress=progress)
