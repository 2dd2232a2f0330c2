"""Diagnoses of subjects, made in a process of ours where the subject lives in this one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from conformance.case_unit import case_by_id, shelf
from conformance.cases.case import Case
from conformance.deviations.known import Deviations
from conformance.diagnosis.brief import ENDED, FIXES, NOTHING, brief, shown
from conformance.diagnosis.diagnose import diagnose
from conformance.diagnosis.observations import listed_in
from conformance.judging.expected import keep_answers
from conformance.reports.brief import Brief, Cause
from conformance.runner import CaseRunner
from conformance.subjects.subject import Subject
from conformance.workers.execute import call
from conformance.workers.interpreters import Settings
from mha_core.errors import listed, one_line

Answer = TypeVar("Answer")

Progress = Callable[[str], None]


def diagnosed(
    subject: Subject,
    cases: Sequence[str],
    table: Deviations,
    experiments: bool = True,
    details: bool = False,
    *,
    progress: Progress = lambda what: None,
) -> Brief:
    """Return a diagnosis in words. `status` is 0 if the subject (tested layer) is right, 1 if wrong, 2 if not judged.

    If all answers are right, the calls are repeated as in `mha check`. `status` is 0 if those answers are right too.

    Args:
        subject, experiments, progress: the arguments of `conformance.diagnosis.diagnose.diagnose` with these names.
        cases: ids of cases of the suite, of random cases and of sequences of calls.
        table: the known deviations. A difference that is listed there is no bug.
        details: whether to add the result of each isolating problem (a call whose answer depends on few steps).

    Raises:
        SpecError: the subject could not run a single case.
    """
    keep_answers(shelf())  # a check beside this one has computed what is expected
    asked = [case_by_id(id) for id in cases]
    known = listed_in(table, subject)
    plain = [case for case in asked if isinstance(case, Case)]
    found = diagnose(subject, plain, experiments=experiments, known=known, progress=progress)
    told = brief(found, details=details)
    if found.differs:
        return told
    progress("asking again, and in sequences of calls")
    runner = CaseRunner(subject, table)
    results = [result for case in asked if (result := runner.run(case)).status in ("different", "failed")]
    again = [result for result in results if result.case not in found.left_out]
    status = 1 if any(result.status == "different" for result in results) else 2 if results else 0
    if not again:
        return replace(told, status=status)
    ids, one = listed([result.case for result in again], SHOWN), again[0]
    seen = (one.message, *(f"{first.call or 'at first'}: {shown(first)}" for first in one.mismatches[:1]))
    what = one.kept or MAY_BE_KEPT
    kept = tuple(Cause(first.stage, what, FIXES["keeps"] * bool(one.kept)) for first in one.mismatches[:1])
    extent = f"{told.extent.replace(NOTHING, '')} But asked again, or in sequences of calls, it fails in {ids}:"
    more = (*filter(None, seen), f"rerun: {one.rerun}", *told.more)
    return replace(told, status=status, extent=extent, causes=kept, more=more)


MAY_BE_KEPT = "A later call differs, alone or because something is kept, or items are mixed: which is not known."
"""The sentence on a later call that differs, where nothing shows what is kept."""

SHOWN = 3  # most cases that are named


def explained(way: Callable[..., Brief], subject: Subject, *arguments: Any) -> Brief:
    """Return `way(subject, *arguments)`, a Brief (diagnosis). If it raises, return a Brief with the error in a line."""
    try:
        return way(subject, *arguments)
    except Exception as error:  # whatever it is, it is no verdict
        return Brief(subject.name, subject.dtype, 1, seen=(f"{ENDED} {one_line(error)}",))


def beside_no_subject(
    settings: Settings, progress: Progress, function: Callable[..., Answer], *arguments: Any
) -> Answer:
    """Return `function(*arguments, progress=progress)`. If `settings.here`, use another process and no `progress`."""
    here = settings.here
    found: Answer = call(settings, function, *arguments) if here else function(*arguments, progress=progress)
    return found
