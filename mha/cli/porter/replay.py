"""`mha replay`: compare backends and subjects with the reference on the recorded calls of live layers."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mha.cli.apart import Apart, worker_options
from mha.cli.common import (
    CouldNotRun,
    OutputFile,
    as_one,
    backend_subjects,
    exit_status,
    of_result,
    progress,
    warn,
)

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.judging.result import Result
    from conformance.subjects.subject import Subject
    from mha.recordings.recording import Recording
    from mha.recordings.replay import Replay


@dataclass(frozen=True)
class ReplayOptions:
    """The arguments and options of `mha replay`."""

    file: Path
    backend_names: tuple[str, ...]
    specs: tuple[str, ...]
    patterns: tuple[str, ...]
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    time_limit: float
    strict: bool
    json_path: Path | None
    unseen: bool
    workers: int | None
    pythons: tuple[str, ...]


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--backend", "-b", "backend_names", multiple=True, help="Only this backend (repeatable).")
@click.option("--subject", "-s", "specs", multiple=True, help="Your own layer, package.module:factory (repeatable).")
@click.option("--case", "-c", "patterns", multiple=True, help="Only calls of this name; wildcards work (repeatable).")
@click.option("--dtype", "-d", "dtypes", multiple=True, help="This dtype (repeatable). Default: that of each call.")
@click.option("--device", "devices", multiple=True, help="Only this device, such as cpu or gpu:0 (repeatable).")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds that a subject may take for one call.")
@click.option("--strict", is_flag=True, help="Refuse a recording that left out modules that look like attention.")
@click.option("--json", "json_path", type=OutputFile(), help="Also write every result to this file.")
@click.option("--unseen/--no-unseen", default=True, help="Whether to say which bugs these calls would not have shown.")
@worker_options
@as_one(ReplayOptions)
def replay(asked: ReplayOptions) -> None:
    """Run the calls that mha.capture recorded in FILE, and compare everything with the reference.

    What was recorded is judged under the bound of its dtype, and so is every backend and subject; the two
    are then at most the sum of their bounds apart, although they never ran in one environment. Without
    --backend and --subject, every installed backend is run.

    Exit status: 0 equal, 1 different, 2 could not run.
    """
    from rich.console import Console

    from conformance.reports import text as report
    from mha.recordings.recording import Recording
    from mha.recordings.replay import replay as run
    from mha.recordings.replay import selected
    from mha.undetectable_bugs.find import undetectable_bugs
    from mha_core import BackendError, SpecError
    from mha_core.dtypes import check_dtype
    from mha_core.files.writing import write_json

    console, errors = Console(), Console(stderr=True)
    try:
        recording = Recording.load(asked.file)
        if asked.strict:
            recording.check_coverage()
        chosen = [check_dtype(dtype) for dtype in asked.dtypes] or list(recording.dtypes)
        apart = Apart(asked.workers, asked.pythons)
        subjects, left_out, broken, versions = _subjects(asked, chosen, apart)
        warn(errors, [*left_out, *broken])
        patterns = asked.patterns or ("*",)
        with apart.kept(), progress(errors, len(recording.calls) * (1 + len(subjects)), of_result) as advance:
            outcome = run(recording, subjects, patterns=patterns, same_dtype=not asked.dtypes, progress=advance)
        missed = undetectable_bugs(recording, selected(recording, patterns)) if asked.unseen else None
    except (SpecError, BackendError, FileNotFoundError) as error:
        raise CouldNotRun(str(error)) from error
    _print(console, recording, outcome, asked.file)
    if missed is not None:
        console.print(missed.text(), markup=False, highlight=False, soft_wrap=True)
    if asked.json_path is not None:
        whole = report.to_json([], versions)
        seen = {"coverage": None if recording.coverage is None else recording.coverage.to_dict()}
        seen["unseen"] = None if missed is None else missed.to_dict()
        write_json(asked.json_path, {**whole, "made_with": dict(recording.versions), **seen, **outcome.to_dict()})
    sys.exit(exit_status(outcome.results, also=outcome.recorded, interrupted=bool(broken)))


def _subjects(
    asked: ReplayOptions, dtypes: list[str], apart: Apart
) -> tuple[list[Subject], list[str], list[str], dict[str, dict[str, str]]]:
    """The subjects to run; a line for each that is left out, and for each whose interpreter can't be used; and the
    versions of the backends.
    """
    settings = apart.settings(asked.specs)
    own, left_out, unusable = apart.own_subjects(asked.specs, dtypes, asked.time_limit, settings)
    only_own = bool(asked.specs) and not asked.backend_names
    backends, absent, broken = ([], [], []) if only_own else apart.backends(asked.backend_names, settings)
    ours, skipped = backend_subjects(backends, dtypes, asked.devices)
    versions = {backend.name: backend.versions() for backend in backends}
    return [*ours, *own], [*left_out, *absent, *skipped], [*unusable, *broken], versions


def _print(console: Console, recording: Recording, outcome: Replay, file: Path) -> None:
    """Print what was recorded, the parity table, the distances from the recording, and every failure."""
    from conformance.reports import text as report

    def text(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    kinds = dict.fromkeys(layer.kind for layer in recording.layers)
    calls = "1 call" if len(recording.calls) == 1 else f"{len(recording.calls)} calls"
    text(f"{calls} of {', '.join(kinds)}, recorded with {recording.made_with}")
    if recording.coverage is not None:
        text(f"{recording.coverage.line}.")
    text("")
    console.print("Worst error / allowed error over all calls; equal means at most 1", style="bold")
    console.print(report.parity_table(outcome.everything))
    if outcome.agreements:
        console.print("\nLargest difference from what was recorded, and over the sum of both bounds", style="bold")
        console.print(_agreement_table(outcome))
    console.print()
    for result in outcome.everything:
        if result.status in ("different", "failed"):
            text(_failure_text(result, file, recorded=result in outcome.recorded))
    for line in report.unsupported_lines(outcome.results):
        text(line)
    text(report.verdict(outcome.everything))


def _failure_text(result: Result, file: Path, *, recorded: bool) -> str:
    """The text of a failure, with the command that explains or repeats it here in its last line."""
    from conformance.reports.text import failure_text

    again = "explain: mha diagnose" if recorded else "rerun: mha replay"
    options = "" if recorded else f" {result.selector} --case {shlex.quote(result.case)} --dtype {result.dtype}"
    body, _, _ = failure_text(result).rpartition("\n")
    return f"{body}\n  {again} {shlex.quote(str(file))}{options}"


def _agreement_table(outcome: Replay) -> object:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="underline")
    table.add_column("")
    for name in ("difference", "over bounds"):
        table.add_column(name, justify="right", no_wrap=True)
    for subject, dtype in dict.fromkeys((one.subject, one.dtype) for one in outcome.agreements):
        own = [one for one in outcome.agreements if (one.subject, one.dtype) == (subject, dtype)]
        ratios = [one.ratio for one in own if one.ratio is not None]
        ratio = f"{max(ratios):.2g}" if ratios else "-"
        table.add_row(f"{subject} {dtype}", f"{max(one.distance for one in own):.1e}", ratio)
    return table
