"""The suite in pytest, with a test for every case. `mha_parity.pytest_plugin` has its options."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from conformance.cases.sequence import Asked
    from conformance.deviations.known import Deviations
    from conformance.judging.result import Result
    from conformance.workers.described import RemoteSubject
    from conformance.workers.interpreters import Settings

pytest_plugins = ["mha_parity.pytest_plugin"]
"""Loads the plugin for users who still name this module with `-p`."""


def register(config: pytest.Config, specs: list[str], marker: str) -> None:
    """Load the subjects (MODULE:NAME) and add the suite's tests, each with this marker, to the pytest run.

    Raises:
        pytest.UsageError: an option is wrong; this ends the run before any test.
    """
    from conformance.cases.table import select_asked
    from conformance.deviations.known import load
    from conformance.workers.described import describe_subjects
    from conformance.workers.interpreters import Settings, interpreters
    from mha_core import BackendError, SpecError

    dtypes = config.getoption("--mha-dtype") or ["float64", "float32"]
    subjects: list[RemoteSubject] = []
    left_out: list[str] = []
    try:
        cases = select_asked(tuple(config.getoption("--mha-case")))
        known = load(config.getoption("--mha-deviations"))
        programs = interpreters(config.getoption("--mha-python"), specs, switch="--mha-python")
        settings = Settings(programs, here=not config.getoption("--mha-apart"))
        limit = config.getoption("--mha-time-limit")
        for spec in dict.fromkeys(specs):
            asked = list(dict.fromkeys(dtypes))
            found, skipped = describe_subjects(spec, asked, limit, settings)
            subjects += found
            left_out += skipped
    except (SpecError, BackendError) as error:
        raise pytest.UsageError(*str(error).splitlines()) from error
    config.pluginmanager.register(
        Suite(subjects, cases, known, settings, left_out=left_out, marker=marker), "mha-suite"
    )


class Suite:
    """The pytest plugin that runs the suite's cases as tests. It is registered only if a subject is given."""

    def __init__(
        self,
        subjects: list[RemoteSubject],
        cases: list[Asked],
        known: Deviations,
        settings: Settings,
        *,
        left_out: list[str],
        marker: str,
    ) -> None:
        self.subjects = subjects
        self.cases = cases
        self.known = known
        self.settings = settings
        self.left_out = left_out
        self.marker = marker
        self.different: dict[str, RemoteSubject] = {}
        """Spec -> the subject of the first dtype in which it differs."""

    def pytest_report_header(self) -> list[str]:
        """Return one line with the subjects, their dtypes and the number of cases."""
        runs = ", ".join(f"{subject.spec} {subject.dtype}" for subject in self.subjects)
        return [f"mha: {len(self.cases)} cases on {runs}"]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the diagnoses, and for each subject a line for each dtype in which it does not compute."""
        for line in self.left_out:
            terminalreporter.write_line(f"mha: {line}", yellow=True)
        if terminalreporter.config.getoption("--mha-no-diagnosis"):
            return
        for subject in self.different.values():
            terminalreporter.section(f"diagnosis of {subject.spec} in {subject.dtype}")
            terminalreporter.write_line(self._diagnosis(subject))

    def judged(self, case: Asked, subject: RemoteSubject, series: str) -> Result:
        """Return the Result of a case on a subject, from worker processes. `series`: a name for a subject's run."""
        from conformance.case_unit import CaseUnit
        from conformance.workers.execute import execute

        (result,) = execute(CaseUnit(subject, (case.id,), None, self.known, series), self.settings)
        return cast("Result", result)

    def _diagnosis(self, subject: RemoteSubject) -> str:
        """What explains the difference, in words."""
        from conformance.cases.case import Case
        from conformance.diagnosis.apart import diagnosed, explained
        from conformance.workers.execute import call

        asked = tuple(case.id for case in self.cases if isinstance(case, Case))
        return explained(partial(call, self.settings, diagnosed), subject, asked, self.known).text

    def pytest_unconfigure(self) -> None:
        """End the processes in which cases were judged."""
        from conformance.workers.execute import end_idle

        end_idle()

    @pytest.hookimpl(tryfirst=True)  # before -k and -m choose
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the suite's tests to the collected ones, even if the user has none."""
        by_spec: dict[str, list[RemoteSubject]] = {}
        for subject in self.subjects:
            by_spec.setdefault(subject.spec, []).append(subject)
        for spec, subjects in by_spec.items():
            collector = SubjectCollector.from_parent(session, name=spec, nodeid=spec, subjects=subjects, suite=self)
            collector.add_marker(self.marker)
            items.extend(session.genitems(collector))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, None]:
        """Report a skipped case with its subject as the location, instead of a line of this file."""
        outcome = yield
        report: pytest.TestReport = outcome.get_result()
        if isinstance(item, CaseItem) and report.skipped and isinstance(report.longrepr, tuple):
            report.longrepr = (item.subject.spec, None, report.longrepr[2])  # type: ignore[assignment]


class SubjectCollector(pytest.Collector):
    """A collector of all cases on one subject."""

    def __init__(self, *, subjects: list[RemoteSubject], suite: Suite, **details: Any) -> None:
        super().__init__(**details)
        self.subjects = subjects
        self.suite = suite

    def collect(self) -> Iterator[CaseItem]:
        from conformance.plan import Plan

        plan = Plan(self.subjects, everything=True)
        for subject in self.subjects:
            series = uuid4().hex
            for case in plan.asked(subject, self.suite.cases):
                name = f"{case.id}[{subject.dtype}]"
                # As a string, which pytest takes apart: --last-failed compares the parts.
                nodeid = f"{self.nodeid}::{name}"
                yield CaseItem.from_parent(
                    self, name=name, nodeid=nodeid, subject=subject, series=series, case=case, suite=self.suite
                )


class CaseItem(pytest.Item):
    """One case on one subject in one dtype."""

    def __init__(self, *, subject: RemoteSubject, series: str, case: Asked, suite: Suite, **details: Any) -> None:
        super().__init__(**details)
        self.suite = suite
        self.subject = subject
        self.series = series
        self.case = case

    def runtest(self) -> None:
        result = self.suite.judged(self.case, self.subject, self.series)
        if result.status == "unsupported":
            pytest.skip(f"{self.name} {result.message}")
        if result.status == "deviates":
            pytest.xfail(f"{self.name} {result.message}")
        elif result.status != "equal":
            if result.status == "different" and result.wrong_at_once:
                self.suite.different.setdefault(self.subject.spec, self.subject)
            raise NotEqual(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        """Return the suite's report for a NotEqual, and pytest's own text for any other exception."""
        if isinstance(excinfo.value, NotEqual):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **kwargs)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Report the subject as the file of the test, because pytest groups tests by file on the terminal."""
        return self.config.rootpath / self.subject.spec, None, f"{self.subject.spec}::{self.name}"


class NotEqual(AssertionError):
    """An error: a case differs or did not run; the message is the text of the report."""

    def __init__(self, result: Result) -> None:
        from conformance.reports.text import failure_text

        super().__init__(failure_text(result))
