"""`mha replay`: compare backends and subjects with the reference on the recorded calls of live layers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from mha.cli import options
from mha.cli.apart import Apart
from mha.cli.common import consoles, of_result, progress, say, status_by, warn, write_asked
from mha.cli.outcomes import Reported, of_results

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.judging.result import Result
    from mha.recordings.recording import Recording
    from mha.recordings.replay import Replay


class ReplayOptions(Reported, Apart):
    """The argument and options of `mha replay`."""

    file: Path = options.path_argument()
    backend_names: tuple[str, ...] = options.backends()
    specs: tuple[str, ...] = options.subjects()
    patterns: tuple[str, ...] = options.calls()
    dtypes: tuple[str, ...] = options.dtypes("that of each call.")
    devices: tuple[str, ...] = options.devices()
    time_limit: float = options.time_limit(of="call")
    strict: bool = options.flag("--strict", "Refuse a recording that left out modules that look like attention.")
    json_path: Path | None = options.json_file("Also write every result to this file.")
    unseen: bool | None = options.unseen()


@options.command(ReplayOptions, "mha replay calls.safetensors")
def replay(asked: ReplayOptions) -> None:
    """Run the calls that mha.capture recorded in FILE, and compare everything with the reference.

    An output, recorded or of a backend or a subject, passes if it differs from the reference by at most the bound of
    its dtype. So two outputs that pass differ from each other by at most the sum of their bounds, even if they are from
    different environments. Without --backend and --subject, every installed backend is run.

    Exit status: 0 equal; 1 different; 2 could not run, or a module that looks like attention was not recorded.
    """
    from conformance.reports import text as report
    from mha.recordings.recording import Recording
    from mha.recordings.replay import replay as run
    from mha.recordings.replay import selected
    from mha.undetectable_bugs.find import undetectable_bugs
    from mha_core.dtypes import check_dtype

    console, errors = consoles()
    recording = Recording.load(asked.file)
    if asked.strict:
        recording.check_coverage()
    dtypes = [check_dtype(dtype) for dtype in asked.dtypes] or list(recording.dtypes)
    found = asked.loaded(
        asked.settings(asked.specs),
        dtypes,
        asked.backend_names,
        asked.specs,
        devices=asked.devices,
        time_limit=asked.time_limit,
    )
    warn(errors, [*found.left_out, *found.broken])
    patterns = asked.patterns or ("*",)
    with (
        asked.kept(),
        progress(errors, len(recording.calls) * (1 + len(found.subjects)), of_result) as advance,
    ):
        outcome = run(recording, found.subjects, patterns=patterns, same_dtype=not asked.dtypes, progress=advance)
    missed = undetectable_bugs(recording, selected(recording, patterns)) if asked.unseen is not False else None
    _print(console, recording, outcome, asked)
    if missed is not None:
        say(console, missed.text(whole=bool(asked.unseen)))
    write_asked(
        asked.json_path,
        lambda: {
            **report.to_json([], found.versions, diagnoses=None),
            "made_with": dict(recording.versions),
            "coverage": None if recording.coverage is None else recording.coverage.to_dict(),
            "unseen": None if missed is None else missed.to_dict(),
            **outcome.to_dict(),
        },
    )
    left = bool(_left_open(recording, asked))
    status = status_by(outcome.results, also=outcome.recorded, failed=bool(found.broken) or left)
    asked.write_outcomes(lambda: of_results(outcome.everything, found.broken), status)
    raise SystemExit(status)


def _left_open(recording: Recording, asked: ReplayOptions) -> str:
    """Return which modules were not judged, in a line; "" for none, or where some calls were asked for by name."""
    return "" if recording.coverage is None or asked.patterns else recording.coverage.not_judged


def _print(console: Console, recording: Recording, outcome: Replay, asked: ReplayOptions) -> None:
    """Print what was recorded, the parity table, the distances from the recording, and every failure."""
    from conformance.reports import text as report

    kinds = dict.fromkeys(layer.kind for layer in recording.layers)
    calls = "1 call" if len(recording.calls) == 1 else f"{len(recording.calls)} calls"
    say(console, f"{calls} of {', '.join(kinds)}, recorded with {recording.made_with}")
    if recording.coverage is not None:
        say(console, f"{recording.coverage.line}.")
    console.print()
    console.print("Worst error / allowed error over all calls; equal means at most 1", style="bold")
    console.print(report.parity_table(outcome.everything))
    if outcome.agreements:
        console.print("\nLargest difference from what was recorded, and over the sum of both bounds", style="bold")
        console.print(_agreement_table(outcome))
    console.print()
    for result in outcome.everything:
        if result.status in ("different", "failed"):
            say(console, _failure_text(result, asked.file, recorded=result in outcome.recorded))
    say(console, *report.unsupported_lines(outcome.results), report.verdict(outcome.everything))
    say(console, *filter(None, [_left_open(recording, asked), recording.not_behind]))


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
