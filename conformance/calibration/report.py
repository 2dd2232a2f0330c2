"""What a calibration came to, as tables for a terminal and as JSON for a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from conformance.calibration.calibrate import ARRAYS, QUANTILES, Figures, Outcome
from conformance.reports.text import plain_table, print_lines

SCHEMA_VERSION = 1
"""Of the JSON report; a change that readers would notice raises it."""

SHOWN = 5
"""Rejections that are shown in full; the JSON report has all."""


def print_figures(console: Console, figures: Figures) -> None:
    """Per dtype: error / allowed error by stage and by implementation, and the worst run; then a last line."""
    for dtype in figures.dtypes():
        console.print(f"{dtype}: error / allowed error, and how much is allowed", style="bold")
        console.print(_by_array(figures, dtype))
        console.print(f"\n{dtype}: largest error / allowed error of a run, by implementation", style="bold")
        console.print(_by_subject(figures, dtype))
        worst = figures.worst(dtype)
        closest = f"{_number(worst.ratio)} in {worst.worst}, {worst.replay}"
        print_lines(console, f"\n{dtype}: closest to its bound: {closest}\n")
    wrong = [*figures.rejected[:SHOWN], *figures.failed[:SHOWN]]
    print_lines(console, *map(outcome_text, wrong), verdict(figures))


def print_replay(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Error / allowed error of every array, one row per run, and what is wrong with it."""
    table = plain_table("", "dtype", *ARRAYS, "worst array")
    for outcome in outcomes:
        ratios = [_number(outcome.ratios[name]) if name in outcome.ratios else "-" for name in ARRAYS]
        table.add_row(outcome.subject, outcome.dtype, *ratios, outcome.worst)
    console.print(table)
    print_lines(console, *(outcome_text(outcome) for outcome in outcomes if outcome.message))


def outcome_text(outcome: Outcome) -> str:
    """What is wrong with one run, and how to run it again."""
    state = "did not run" if outcome.failed else "rejected"
    lines = "\n".join(f"  {line}" for line in outcome.message.splitlines())
    return f"{outcome.subject} {outcome.dtype}, problem {outcome.case}: {state}\n{lines}\n  replay: {outcome.replay}"


def verdict(figures: Figures) -> str:
    """One line for all of it."""
    total = f"{len(figures.outcomes):,} runs of correct implementations"
    failed = f", {len(figures.failed):,} did not run" if figures.failed else ""
    return f"{len(figures.rejected):,} of {total} rejected{failed}."


def to_json(figures: Figures, *, seed: int, environment: dict[str, Any]) -> dict[str, Any]:
    """All figures, every rejection and the worst run of each dtype, as JSON can hold them."""
    by_dtype = {
        dtype: {
            "runs": len(figures.of_dtype(dtype)),
            "rejected": sum(outcome.rejected for outcome in figures.of_dtype(dtype)),
            "arrays": figures.by_array(dtype),
            "subjects": figures.by_subject(dtype),
            "worst": _outcome(figures.worst(dtype)),
        }
        for dtype in figures.dtypes()
    }
    return {
        "schema": SCHEMA_VERSION,
        "environment": environment,
        "seed": seed,
        "dtypes": by_dtype,
        "rejected": [_outcome(outcome) for outcome in figures.rejected],
        "failed": [_outcome(outcome) for outcome in figures.failed],
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {**vars(outcome), "ratio": outcome.ratio, "replay": outcome.replay}


def _by_array(figures: Figures, dtype: str) -> Table:
    table = plain_table("", *QUANTILES, "allowed / largest")
    for name, found in figures.by_array(dtype).items():
        table.add_row(name, *map(_number, found["ratio"].values()), f"{found['allowed']['median']:.1e}")
    return table


def _by_subject(figures: Figures, dtype: str) -> Table:
    table = plain_table("", "runs", "rejected", *QUANTILES)
    for name, found in figures.by_subject(dtype).items():
        rejected = f"[{'bold red' if found['rejected'] else 'green'}]{found['rejected']:,}[/]"
        table.add_row(name, f"{found['runs']:,}", rejected, *map(_number, found["ratio"].values()))
    return table


def _number(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 10.0 else f"{ratio:.1e}"
