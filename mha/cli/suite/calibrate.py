"""`mha calibrate`: count the false alarms."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mha.cli.apart import Apart, worker_options
from mha.cli.common import (
    COULD_NOT_RUN,
    DIFFERENT,
    EQUAL,
    CouldNotRun,
    OutputFile,
    as_one,
    backend_subjects,
    progress,
    warn,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.calibration.calibrate import Figures, Outcome
    from conformance.calibration.unit import Run
    from conformance.subjects.subject import Subject
    from conformance.workers.interpreters import Settings
    from mha_core.backend import Backend


@dataclass(frozen=True)
class CalibrateOptions:
    """The options of `mha calibrate`."""

    runs: int
    seed: int
    dtypes: tuple[str, ...]
    backend_names: tuple[str, ...]
    names: tuple[str, ...]
    is_list: bool
    replay: str | None
    json_path: Path | None
    workers: int | None
    pythons: tuple[str, ...]

    @cached_property
    def apart(self) -> Apart:
        return Apart(self.workers, self.pythons)


@click.command()
@click.option("--runs", "-n", type=click.IntRange(min=1), default=2000, show_default=True, help="Runs in each dtype.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random problems.")
@click.option("--dtype", "-d", "dtypes", multiple=True, help="This dtype (repeatable). Default: float32.")
@click.option("--backend", "-b", "backend_names", multiple=True, help="Only this backend (repeatable).")
@click.option("--formulation", "-f", "names", multiple=True, help="Only this NumPy formulation (repeatable).")
@click.option("--list", "is_list", is_flag=True, help="List the NumPy formulations, and end.")
@click.option("--replay", metavar="SEED-INDEX", help="Run one problem again, as a report names it.")
@click.option("--json", "json_path", type=OutputFile(), help="Also write the figures to this file.")
@worker_options
@as_one(CalibrateOptions)
def calibrate(asked: CalibrateOptions) -> None:
    """Run correct implementations on random problems: each one that is rejected is a false alarm.

    Without --backend and --formulation, every NumPy formulation and every installed backend takes part.

    Exit status: 0 none rejected, 1 some rejected, 2 could not run.
    """
    from rich.console import Console

    from conformance.calibration import report
    from conformance.calibration.calibrate import Figures, parse_case
    from conformance.calibration.calibrate import replay as run_again
    from conformance.calibration.formulations import FORMULATIONS
    from conformance.calibration.unit import calibrate_apart
    from mha_core import BackendError, SpecError

    console, errors = Console(), Console(stderr=True)
    if asked.is_list:
        for name, ways in FORMULATIONS.items():
            console.print(f"{name}: {ways.describe()}", markup=False, highlight=False, soft_wrap=True)
        return
    try:
        if asked.replay is not None:
            parse_case(asked.replay)
        settings = asked.apart.settings()
        subjects, backends, left_out, broken = _subjects(asked, settings)
    except (SpecError, BackendError) as error:
        raise CouldNotRun(str(error)) from error
    warn(errors, [*left_out, *broken])

    figures, interrupted = Figures(), False
    if asked.replay is not None:
        with asked.apart.kept():
            for dtype, group in subjects.items():
                for wanted, outcome in run_again(asked.replay, dtype, group):
                    figures.add(wanted, outcome)
        report.print_replay(console, figures.outcomes)
    else:
        total = asked.runs * len(subjects)
        with asked.apart.executor() as executor, progress(errors, total, _of_outcome) as advance:
            found = calibrate_apart(asked.seed, asked.runs, subjects, executor, settings)
            interrupted = _gather(figures, found, asked.runs, subjects, advance)
        if figures.outcomes:
            report.print_figures(console, figures)
        if interrupted:
            errors.print(f"interrupted: {len(figures.outcomes)} of {total} runs are there", style="yellow")
    if asked.json_path is not None:
        from conformance.reports.text import to_json
        from mha_core.files.writing import write_json

        versions = {backend.name: backend.versions() for backend in backends}
        environment = to_json([], versions)["environment"]
        write_json(asked.json_path, report.to_json(figures, seed=asked.seed, environment=environment))
    failed = bool(figures.failed) or interrupted or bool(broken)
    sys.exit(DIFFERENT if figures.rejected else COULD_NOT_RUN if failed else EQUAL)


def _subjects(
    asked: CalibrateOptions, settings: Settings
) -> tuple[dict[str, list[Subject]], list[Backend], list[str], list[str]]:
    """Dtype -> its subjects; the backends; a line for each dtype or backend that was left out; and one for each whose
    interpreter can't be used.
    """
    from conformance.calibration.formulations import FORMULATIONS, formulation
    from mha_core.dtypes import check_dtype

    chosen = [check_dtype(dtype) for dtype in dict.fromkeys(asked.dtypes or ("float32",))]
    everyone = not asked.backend_names and not asked.names
    formulations = dict.fromkeys(asked.names or (FORMULATIONS if everyone else ()))
    subjects: dict[str, list[Subject]] = {
        dtype: [formulation(name, dtype) for name in formulations] for dtype in chosen
    }
    with_backends = bool(asked.backend_names) or everyone
    loaded = asked.apart.backends(asked.backend_names, settings) if with_backends else ([], [], [])
    backends, left_out, broken = loaded
    if backends:
        ours, skipped = backend_subjects(backends, chosen, ("cpu",))
        left_out = [*left_out, *skipped]
        for subject in ours:
            subjects[subject.dtype].append(subject)
    return {dtype: group for dtype, group in subjects.items() if group}, backends, left_out, broken


def _gather(
    figures: Figures,
    runs: Iterator[Run],
    number: int,
    subjects: Mapping[str, Sequence[Subject]],
    advance: Callable[[Outcome], None],
) -> bool:
    """Add every run to `figures`, in the order of one process; True if the user interrupted, so that those that are
    there can be reported.
    """
    from conformance.calibration.unit import in_order
    from conformance.runner import until_interrupted

    def seen() -> Iterator[Run]:
        for run in runs:
            advance(run.outcome)
            yield run

    found, interrupted = until_interrupted(seen())
    for run in in_order(found, number, subjects):
        figures.add_measured(run.outcome, run.tightness)
    return interrupted


def _of_outcome(outcome: Outcome) -> str:
    """The text of the progress bar after a run."""
    return f"{outcome.dtype} {outcome.case}"
