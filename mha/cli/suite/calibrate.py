"""`mha calibrate`: count the false alarms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mha.cli import options
from mha.cli.apart import Apart, Loaded
from mha.cli.common import consoles, finish, say, warn, write_asked
from mha.cli.options import option

if TYPE_CHECKING:
    from conformance.calibration.unit import Run
    from conformance.subjects.subject import Subject
    from conformance.workers.interpreters import Settings


class CalibrateOptions(Apart):
    """The options of `mha calibrate`."""

    runs: int = option(
        "--runs",
        "-n",
        type=click.IntRange(min=1),
        default=2000,
        show_default=True,
        help="Runs in each dtype.",
    )
    seed: int = options.seed("random problems")
    dtypes: tuple[str, ...] = options.dtypes("float32.")
    backend_names: tuple[str, ...] = options.backends()
    names: tuple[str, ...] = options.several("--formulation", "-f", help="Only this NumPy formulation (repeatable).")
    is_list: bool = options.flag("--list", "List the NumPy formulations, and end.")
    replay: str | None = option("--replay", metavar="SEED-INDEX", help="Run one problem again, as a report names it.")
    json_path: Path | None = options.json_file("Also write the figures to this file.")


@options.command(CalibrateOptions)
def calibrate(asked: CalibrateOptions) -> None:
    """Run correct implementations on random problems: each one that is rejected is a false alarm.

    Without --backend and --formulation, every NumPy formulation and every installed backend takes part.

    Exit status: 0 none rejected, 1 some rejected, 2 could not run.
    """
    from conformance.calibration import report
    from conformance.calibration.calibrate import Figures, parse_case
    from conformance.calibration.calibrate import replay as run_again
    from conformance.calibration.formulations import FORMULATIONS
    from conformance.calibration.unit import calibrate_apart, in_order
    from conformance.reports.text import to_json

    console, errors = consoles()
    if asked.is_list:
        say(console, *(f"{name}: {ways.describe()}" for name, ways in FORMULATIONS.items()))
        return
    if asked.replay is not None:
        parse_case(asked.replay)
    settings = asked.settings()
    subjects, loaded = _subjects(asked, settings)
    warn(errors, [*loaded.left_out, *loaded.broken])

    figures, interrupted = Figures(), False
    if asked.replay is not None:
        with asked.kept():
            for dtype, group in subjects.items():
                for wanted, outcome in run_again(asked.replay, dtype, group):
                    figures.add(wanted, outcome)
        report.print_replay(console, figures.outcomes)
    else:
        total = asked.runs * len(subjects)
        found, interrupted = asked.gathered(
            errors,
            total,
            _of_run,
            lambda executor: calibrate_apart(asked.seed, asked.runs, subjects, executor, settings),
        )
        for run in in_order(found, asked.runs, subjects):
            figures.add_measured(run.outcome, run.tightness)
        if figures.outcomes:
            report.print_figures(console, figures)
        if interrupted:
            warn(errors, [f"interrupted: {len(figures.outcomes)} of {total} runs are there"])
    environment = to_json([], loaded.versions)["environment"]
    write_asked(asked.json_path, lambda: report.to_json(figures, seed=asked.seed, environment=environment))
    finish(figures.rejected, figures.failed or interrupted or loaded.broken)


def _subjects(asked: CalibrateOptions, settings: Settings) -> tuple[dict[str, list[Subject]], Loaded]:
    """Dtype -> its subjects, formulations first; and the backends among them."""
    from conformance.calibration.formulations import FORMULATIONS, formulation
    from mha_core.dtypes import check_dtype

    dtypes = [check_dtype(dtype) for dtype in dict.fromkeys(asked.dtypes or ("float32",))]
    everyone = not asked.backend_names and not asked.names
    names = dict.fromkeys(asked.names or (FORMULATIONS if everyone else ()))
    subjects: dict[str, list[Subject]] = {dtype: [formulation(name, dtype) for name in names] for dtype in dtypes}
    loaded = Loaded()
    if asked.backend_names or everyone:
        loaded = asked.loaded(settings, dtypes, asked.backend_names, devices=("cpu",))
    for subject in loaded.subjects:
        subjects[subject.dtype].append(subject)
    return {dtype: group for dtype, group in subjects.items() if group}, loaded


def _of_run(run: Run) -> str:
    """The text of the progress bar after a run."""
    return f"{run.outcome.dtype} {run.outcome.case}"
