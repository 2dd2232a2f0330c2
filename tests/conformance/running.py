"""Every case on every subject, in this process."""

from collections.abc import Callable, Iterator, Sequence

from conformance.cases.sequence import Asked
from conformance.deviations.known import Deviations
from conformance.judging.result import Result
from conformance.plan import Plan
from conformance.runner import CaseRunner
from conformance.subjects.subject import Subject


def run_all(
    cases: Sequence[Asked],
    subjects: Sequence[Subject],
    progress: Callable[[Result], None] = lambda result: None,
    known: Deviations | None = None,
    *,
    everything: bool = True,
) -> Iterator[Result]:
    """Yield the Result of every case on every subject, subject by subject (see `Plan`), after `progress(result)`.

    The reference runs in this process, where other imported code can change NumPy; `conformance.case_unit.run_apart`
    runs it in a process of its own.
    """
    plan = Plan(subjects, everything=everything)
    for subject in subjects:
        runner = CaseRunner(subject, known, plan.again(subject))
        for case in plan.asked(subject, cases):
            outcome = runner.run(case)
            progress(outcome)
            yield outcome
