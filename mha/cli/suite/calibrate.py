"""`mha calibrate`: count the false alarms."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mha.cli.common import (
    COULD_NOT_RUN,
    DIFFERENT,
    EQUAL,
    CouldNotRun,
    OutputFile,
    as_one,
    backend_subjects,
    load_backends,
    progress,
    warn,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.calibration.calibrate import Figures, Outcome
    from conformance.judging.expected import Expected
    from conformance.subjects.subject import Subject
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


@click.command()
@click.option("--runs", "-n", type=click.IntRange(min=1), default=2000, show_default=True, help="Runs in each dtype.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random problems.")
@click.option("--dtype", "-d", "dtypes", multiple=True, help="This dtype (repeatable). Default: float32.")
@click.option("--backend", "-b", "backend_names", multiple=True, help="Only this backend (repeatable).")
@click.option("--formulation", "-f", "names", multiple=True, help="Only this NumPy formulation (repeatable).")
@click.option("--list", "is_list", is_flag=True, help="List the NumPy formulations, and end.")
@click.option("--replay", metavar="SEED-INDEX", help="Run one problem again, as a report names it.")
@click.option("--json", "json_path", type=OutputFile(), help="Also write the figures to this file.")
@as_one(CalibrateOptions)
def calibrate(asked: CalibrateOptions) -> None:
    """Run correct implementations on random problems: each one that is rejected is a false alarm.

    Without --backend and --formulation, every NumPy formulation and every installed backend takes part.

    Exit status: 0 none rejected, 1 some rejected, 2 could not run.
    """
    from rich.console import Console

    from conformance.calibration import report
    from conformance.calibration.calibrate import Figures, calibrate, parse_case
    from conformance.calibration.calibrate import replay as run_again
    from conformance.calibration.formulations import FORMULATIONS
    from mha_core import BackendError, SpecError

    console, errors = Console(), Console(stderr=True)
    if asked.is_list:
        for name, ways in FORMULATIONS.items():
            console.print(f"{name}: {ways.describe()}", markup=False, highlight=False, soft_wrap=True)
        return
    try:
        if asked.replay is not None:
            parse_case(asked.replay)
        subjects, backends, left_out = _subjects(asked.dtypes or ("float32",), asked.backend_names, asked.names)
        if asked.replay is not None:
            streams = [run_again(asked.replay, dtype, group) for dtype, group in subjects.items()]
        else:
            streams = [calibrate(asked.seed, asked.runs, dtype, group) for dtype, group in subjects.items()]
    except (SpecError, BackendError) as error:
        raise CouldNotRun(str(error)) from error
    warn(errors, left_out)

    figures, interrupted = Figures(), False
    if asked.replay is not None:
        for stream in streams:
            for wanted, outcome in stream:
                figures.add(wanted, outcome)
        report.print_replay(console, figures.outcomes)
    else:
        total = asked.runs * len(streams)
        with progress(errors, total, _of_outcome) as advance:
            interrupted = _gather(figures, streams, advance)
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
    failed = bool(figures.failed) or interrupted
    sys.exit(DIFFERENT if figures.rejected else COULD_NOT_RUN if failed else EQUAL)


def _subjects(
    dtypes: tuple[str, ...], backend_names: tuple[str, ...], names: tuple[str, ...]
) -> tuple[dict[str, list[Subject]], list[Backend], list[str]]:
    """Dtype -> its subjects; the backends; and a line for each dtype or backend that was left out."""
    from conformance.calibration.formulations import FORMULATIONS, formulation
    from mha_core.dtypes import check_dtype

    chosen = [check_dtype(dtype) for dtype in dict.fromkeys(dtypes)]
    everyone = not backend_names and not names
    formulations = dict.fromkeys(names or (FORMULATIONS if everyone else ()))
    subjects: dict[str, list[Subject]] = {
        dtype: [formulation(name, dtype) for name in formulations] for dtype in chosen
    }
    backends, left_out = load_backends(backend_names) if backend_names or everyone else ([], [])
    if backends:
        ours, skipped = backend_subjects(backends, chosen, ("cpu",))
        left_out = [*left_out, *skipped]
        for subject in ours:
            subjects[subject.dtype].append(subject)
    return {dtype: group for dtype, group in subjects.items() if group}, backends, left_out


def _gather(
    figures: Figures, streams: Iterable[Iterable[tuple[Expected, Outcome]]], advance: Callable[[Outcome], None]
) -> bool:
    """Add every run to `figures`; True if the user interrupted, so that the finished runs can be reported."""
    try:
        for stream in streams:
            for wanted, outcome in stream:
                figures.add(wanted, outcome)
                advance(outcome)
    except KeyboardInterrupt:
        return True
    return False


def _of_outcome(outcome: Outcome) -> str:
    """The text of the progress bar after a run."""
    return f"{outcome.dtype} {outcome.case}"
