"""`mha check`: run the cases and compare."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mha.cli.apart import Apart, worker_options
from mha.cli.common import (
    COULD_NOT_RUN,
    NO_COMPILE_CACHE,
    CouldNotRun,
    OutputFile,
    as_one,
    backend_subjects,
    exit_status,
    of_result,
    progress,
    says,
    warn,
)

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.cases.sequence import Asked
    from conformance.deviations.known import Deviations
    from conformance.judging.result import Result
    from conformance.subjects.subject import Subject
    from conformance.workers.interpreters import Settings
    from mha_core.backend import Backend


@dataclass(frozen=True)
class CheckOptions:
    """The options of `mha check`."""

    backend_names: tuple[str, ...]
    specs: tuple[str, ...]
    patterns: tuple[str, ...]
    suite: str | None
    count: int | None
    seed: int
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    path: str | None
    time_limit: float
    table_path: Path | None
    no_diagnosis: bool
    json_path: Path | None
    html_path: Path | None
    workers: int | None
    pythons: tuple[str, ...]

    @cached_property
    def apart(self) -> Apart:
        return Apart(self.workers, self.pythons)


@click.command()
@click.option("--backend", "-b", "backend_names", multiple=True, help="Only this backend (repeatable).")
@click.option("--subject", "-s", "specs", multiple=True, help="Your own layer, package.module:factory (repeatable).")
@click.option("--case", "-c", "patterns", multiple=True, help="Only cases of this id; wildcards work (repeatable).")
@click.option("--suite", type=click.Choice(["onnx"]), help="ONNX's own test vectors instead of the table.")
@click.option("--random", "count", type=click.IntRange(min=1), help="Run this many random cases instead of the table.")
@click.option("--seed", default=0, show_default=True, help="Of the random cases.")
@click.option("--dtype", "-d", "dtypes", multiple=True, help="This dtype (repeatable). Default: float64 and float32.")
@click.option("--device", "devices", multiple=True, help="Only this device, such as cpu or gpu:0 (repeatable).")
@click.option("--path", help="Run the backends on this path, such as eager or compiled. Default: its first, and fast.")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds that a subject may take for one case.")
@click.option(
    "--deviations",
    "table_path",
    type=click.Path(path_type=Path),
    help="Also a table of known deviations of your own, in TOML.",
)
@click.option("--no-diagnosis", is_flag=True, help="Do not look for the reason why a subject differs.")
@click.option("--json", "json_path", type=OutputFile(), help="Also write every result to this file.")
@click.option("--html", "html_path", type=OutputFile(), help="Also write a report page to this file.")
@worker_options
@NO_COMPILE_CACHE
@as_one(CheckOptions)
def check(asked: CheckOptions) -> None:
    """Compare all stages and gradients with the float64 reference, in every case.

    Without --backend and --subject, every installed backend is checked. A subject that differs is
    diagnosed as well. What the table of deviations lists is expected: see `mha deviations`.

    Exit status: 0 equal or as listed, 1 different, 2 could not run.
    """
    from rich.console import Console

    from conformance.deviations import known as deviations
    from conformance.reports import text as report
    from conformance.reports.looked_at import looked_at
    from conformance.runner import asked_of
    from mha_core import BackendError, SpecError
    from mha_core.dtypes import check_dtype

    console, errors = Console(), Console(stderr=True)
    if asked.suite is not None:
        if asked.count is not None or asked.dtypes or asked.devices or asked.table_path is not None:
            raise CouldNotRun("--suite onnx has its own cases and dtypes, and runs on the CPU: leave out the others")
        _check_onnx(console, errors, asked)
    try:
        cases = _selected_cases(asked.patterns, asked.count, asked.seed)
        known = deviations.load(asked.table_path)
        chosen_dtypes = [check_dtype(dtype) for dtype in asked.dtypes or ("float64", "float32")]
        apart = asked.apart
        settings = apart.settings(asked.specs)
        own, left_out, broken = apart.own_subjects(asked.specs, chosen_dtypes, asked.time_limit, settings)
        backends, absent, unusable = _backends(asked, settings)
        broken += unusable
        ours, skipped = backend_subjects(backends, chosen_dtypes, asked.devices, asked.path)
    except (SpecError, BackendError) as error:
        raise CouldNotRun(str(error)) from error
    warn(errors, [*left_out, *absent, *broken, *skipped])

    subjects = [*ours, *own]
    if not subjects:
        _write(asked, report.to_json([], {}, known, broken))
        sys.exit(COULD_NOT_RUN)
    runs = [(case, subject) for subject in subjects for case in asked_of(subject, cases, subjects)]
    results, interrupted = _judged(errors, runs, apart, settings, known)
    looked = looked_at(cases, results, subjects)
    report.print_results(console, results, looked)
    if interrupted:
        errors.print(f"interrupted: {len(results)} of {len(runs)} results are there", style="yellow")
    versions = {backend.name: backend.versions() for backend in backends}
    _write(asked, report.to_json(results, versions, known, broken, looked))
    if not interrupted and not asked.no_diagnosis:
        _explain(console, errors, own, cases, results, known, settings)
        if asked.count is not None:
            _show_smallest(console, errors, subjects, results, settings)
    sys.exit(exit_status(results, interrupted=interrupted or bool(broken)))


def _backends(asked: CheckOptions, settings: Settings) -> tuple[list[Backend], list[str], list[str]]:
    """The backends that were asked for, as `Apart.backends`; none if only subjects were."""
    if asked.specs and not asked.backend_names:
        return [], [], []
    return asked.apart.backends(asked.backend_names, settings)


def _judged(
    errors: Console,
    runs: Sequence[tuple[Asked, Subject]],
    apart: Apart,
    settings: Settings,
    known: Deviations | None,
    *,
    whole: bool = False,
) -> tuple[list[Result], bool]:
    """The results of all runs in their order, or of those up to an interrupt by the user; and whether there was one.

    Each row of results is shown as soon as it is there.
    """
    from conformance.case_unit import run_apart
    from conformance.reports.text import row_line
    from conformance.runner import until_interrupted

    total = Counter((subject.name, subject.dtype, subject.device) for _, subject in runs)
    rows: dict[tuple[str, str, str], list[Result]] = {}
    with apart.executor() as executor, progress(errors, len(runs), of_result) as advance:

        def seen() -> Iterator[tuple[int, Result]]:
            for number, result in run_apart(runs, executor, settings, known, whole=whole):
                advance(result)
                row = (result.subject, result.dtype, result.device)
                rows.setdefault(row, []).append(result)
                if len(total) > 1 and len(rows[row]) == total[row]:
                    errors.print(row_line(rows[row]), markup=False, highlight=False, soft_wrap=True)
                yield number, result

        found, interrupted = until_interrupted(seen())
    return [result for _, result in sorted(found, key=itemgetter(0))], interrupted


def _check_onnx(console: Console, errors: Console, asked: CheckOptions) -> NoReturn:
    """Run ONNX's vectors, and end the process with the exit status."""
    from conformance.onnx import suite as onnx_suite
    from conformance.reports import text as report
    from conformance.reports.looked_at import looked_at
    from mha_core import BackendError, SpecError

    apart = asked.apart
    try:
        cases = onnx_suite.onnx_cases(asked.patterns)
        settings = apart.settings(asked.specs)
        backends, absent, broken = _backends(asked, settings)
        load = apart.loader(asked.time_limit, settings)
        runs = onnx_suite.runs(cases, backends, asked.specs, asked.path, load)
    except (SpecError, BackendError) as error:
        raise CouldNotRun(str(error)) from error
    warn(errors, [*absent, *broken])

    judged, interrupted = _judged(errors, runs, apart, settings, None, whole=True)
    # What ONNX recorded has a row of its own.
    results = [replace(result, recorded={}) for result in judged]
    looked = looked_at([case for case, _ in runs], results, [subject for _, subject in runs])
    report.print_results(console, results, looked)
    versions = {backend.name: backend.versions() for backend in backends}
    _write(asked, report.to_json(results, versions, looked_at=looked))
    sys.exit(exit_status(results, interrupted=interrupted or bool(broken)))


def _write(asked: CheckOptions, whole: dict[str, Any]) -> None:
    """Write the report to the files that were asked for."""
    from mha_core.files.writing import write_json

    if asked.json_path is not None:
        write_json(asked.json_path, whole)
    if asked.html_path is not None:
        from conformance.reports.html import write_html

        write_html(asked.html_path, whole)


def _selected_cases(patterns: tuple[str, ...], count: int | None, seed: int) -> list[Asked]:
    """The cases and sequences of the table that match, or random cases."""
    from conformance.cases import table as cases
    from conformance.cases.random import case_from_text, is_case_text, random_cases

    if count is not None:
        from hypothesis.configuration import set_hypothesis_home_dir

        # Hypothesis would keep notes in the current folder.
        set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "mha-hypothesis")
        drawn = random_cases(count, seed)
        return [case for case in drawn if not patterns or case.id in patterns]
    texts = [pattern for pattern in patterns if is_case_text(pattern)]
    named = tuple(pattern for pattern in patterns if not is_case_text(pattern))
    return [*map(case_from_text, texts), *(cases.select_asked(named) if named or not texts else [])]


def _explain(
    console: Console,
    errors: Console,
    subjects: list[Subject],
    cases: list[Asked],
    results: list[Result],
    known: Deviations,
    settings: Settings,
) -> None:
    """Diagnose each subject that differs somewhere, once, in the first dtype in which it differs."""
    from conformance.cases.case import Case

    ids = tuple(case.id for case in cases if isinstance(case, Case))  # of a sequence its result says what is kept
    done: set[str] = set()
    for subject in subjects:
        own = [result for result in results if (result.subject, result.dtype) == (subject.name, subject.dtype)]
        wrong = {result.case for result in own if result.status == "different" and result.wrong_at_once}
        if subject.name in done or not wrong & set(ids):
            continue
        from conformance.diagnosis.apart import beside_no_subject, diagnosed, explained

        done.add(subject.name)
        with errors.status("") as status:
            text = explained(beside_no_subject, settings, says(status), diagnosed, subject, ids, known)
        console.print(f"\n{text}", markup=False, highlight=False, soft_wrap=True)


def _show_smallest(
    console: Console, errors: Console, subjects: list[Subject], results: list[Result], settings: Settings
) -> None:
    """Shrink the first random case that each subject fails, and say how to run the small one."""
    from rich.markup import escape

    from conformance.case_unit import FAILING, smallest
    from conformance.reports.text import failure_text
    from conformance.workers.execute import call

    for subject in subjects:
        wrong = [
            result
            for result in results
            if (result.subject, result.dtype) == (subject.name, subject.dtype) and result.status in FAILING
        ]
        if not wrong:
            continue
        with errors.status(escape(f"looking for a small case that {subject.name} fails")):
            result = call(settings, smallest, wrong[0].case, subject)
        text = f"\nA small one of the {len(wrong)} random cases that fail:\n{failure_text(result)}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
