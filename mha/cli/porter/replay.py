"""`mha replay`: judge backends and subjects by what was recorded of a live layer."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mha.cli.common import (
    COULD_NOT_RUN,
    DIFFERENT,
    EQUAL,
    CouldNotRun,
    OutputFile,
    backend_subjects,
    load_backends,
    progress,
)

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.judging.result import Result
    from conformance.subjects.subject import Subject
    from mha.recordings.recording import Recording
    from mha.recordings.replay import Replay


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
def replay(
    file: Path,
    backend_names: tuple[str, ...],
    specs: tuple[str, ...],
    patterns: tuple[str, ...],
    dtypes: tuple[str, ...],
    devices: tuple[str, ...],
    time_limit: float,
    strict: bool,
    json_path: Path | None,
    unseen: bool,
) -> None:
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
    from mha.recordings.unseen import unseen as find_unseen
    from mha_core import BackendError, SpecError
    from mha_core.dtypes import check_dtype
    from mha_core.files.writing import write_json

    console, errors = Console(), Console(stderr=True)
    try:
        recording = Recording.load(file)
        if strict:
            recording.check_coverage()
        chosen = [check_dtype(dtype) for dtype in dtypes] or list(recording.dtypes)
        subjects, left_out, versions = _subjects(backend_names, specs, chosen, devices, time_limit)
        for line in left_out:
            errors.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
        with progress(errors, total=len(recording.calls) * (1 + len(subjects))) as advance:
            outcome = run(recording, subjects, patterns=patterns or ("*",), same_dtype=not dtypes, progress=advance)
        missed = find_unseen(recording, selected(recording, patterns or ("*",))) if unseen else None
    except (SpecError, BackendError, FileNotFoundError) as error:
        raise CouldNotRun(str(error)) from error
    _print(console, recording, outcome, file)
    if missed is not None:
        console.print(missed.text(), markup=False, highlight=False, soft_wrap=True)
    if json_path is not None:
        whole = report.to_json([], versions)
        seen = {"coverage": None if recording.coverage is None else recording.coverage.to_dict()}
        seen["unseen"] = None if missed is None else missed.to_dict()
        write_json(json_path, {**whole, "made_with": dict(recording.versions), **seen, **outcome.to_dict()})
    statuses = {result.status for result in outcome.everything}
    nothing_judged = not {result.status for result in outcome.results} & {"equal", "different"}
    sys.exit(
        DIFFERENT if "different" in statuses else COULD_NOT_RUN if "failed" in statuses or nothing_judged else EQUAL
    )


def _subjects(
    backend_names: tuple[str, ...],
    specs: tuple[str, ...],
    dtypes: list[str],
    devices: tuple[str, ...],
    time_limit: float,
) -> tuple[list[Subject], list[str], dict[str, dict[str, str]]]:
    """What is to be run; a line for everything that is left out; and the versions of the backends."""
    from conformance.subjects.load import load_subjects

    own: list[Subject] = []
    left_out: list[str] = []
    for spec in specs:
        found, lines = load_subjects(spec, dtypes, time_limit=time_limit)
        own += found
        left_out += lines
    backends, absent = load_backends(backend_names) if backend_names or not specs else ([], [])
    ours, skipped = backend_subjects(backends, dtypes, devices)
    return [*ours, *own], [*left_out, *absent, *skipped], {backend.name: backend.versions() for backend in backends}


def _print(console: Console, recording: Recording, outcome: Replay, file: Path) -> None:
    """What was recorded, the parity table, how far everybody is from the recording, and every failure."""
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
    """As `report.failure_text`, with what explains or repeats it here in place of its last line."""
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
