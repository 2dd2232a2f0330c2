"""The results of trials, as tables for a terminal and as JSON for a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from conformance.reports.text import plain_table, print_lines
from conformance.trials.unit import NATIVE, RIGHT, Outcome
from mha_core.errors import shown

SCHEMA_VERSION = 1
"""Of the JSON report; a change that readers would notice raises it."""

GROUPS = ("singles", "pairs", "triples", "gradients", "restricted", "zoo", "rewritten", RIGHT, NATIVE)

SHOWN = 10
"""The most trials that a list shows; the JSON report has all."""

SHARES = ("differs", "stage", "described", "wrong", "silent")
"""The fields of a verdict that are counted."""

COLUMNS = ("", "tried", "seen", "stage", "described", "wrong", "silent", "median", "worst")
"""The columns of a table: shares in percent, then seconds."""

LONGEST = 150
"""The most characters of a truth, or of a claim, that are shown."""


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """How many were tried and failed, the count of each of SHARES, and the median and largest processor time."""
    judged = [one for one in outcomes if one.verdict is not None]
    counts = {name: sum(bool(getattr(one.verdict, name)) for one in judged) for name in SHARES}
    times = [one.busy for one in judged] or [0.0]
    return {
        "tried": len(outcomes),
        "failed": len(outcomes) - len(judged),
        **counts,
        "median": median(times),
        "worst": max(times),
    }


def by(name: str, outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by a property, in the order in which its values occur."""
    found: dict[str, list[Outcome]] = {}
    for one in outcomes:
        found.setdefault(getattr(one, name), []).append(one)
    return found


def to_json(
    outcomes: Sequence[Outcome], *, seed: int, experiments: bool, environment: dict[str, Any]
) -> dict[str, Any]:
    """All figures, and every outcome."""
    groups = by("group", outcomes)
    return {
        "schema_version": SCHEMA_VERSION,
        "seed": seed,
        "experiments": experiments,
        "environment": environment,
        "groups": {
            name: {
                **figures_of(groups[name]),
                "kinds": {kind: figures_of(some) for kind, some in sorted(by("kind", groups[name]).items())},
            }
            for name in GROUPS
            if name in groups
        },
        "outcomes": [asdict(one) for one in outcomes],
    }


def print_outcomes(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Tables by group and by kind of fault; then the trials that went wrong, each with the command that repeats it."""
    groups = by("group", outcomes)
    console.print("Percent of what was tried, and seconds of the processor", style="bold")
    console.print(_table({name: groups[name] for name in GROUPS if name in groups}))
    for name in ("singles", "gradients"):
        if name in groups:
            console.print(f"\n{name}, by kind of fault", style="bold")
            console.print(_table(dict(sorted(by("kind", groups[name]).items()))))
    for heading, some in _listed(outcomes):
        console.print(f"\n{heading}: {len(some)}", style="bold")
        for one in some[:SHOWN]:
            said = one.failed or (one.verdict.said if one.verdict else "")
            truth = f"  mha trials --trial {one.id}\n    truth: {_short(one.words)}"
            print_lines(console, f"{truth}\n    said:  {_short(said)}")
        if len(some) > SHOWN:
            print_lines(console, f"  and {len(some) - SHOWN} more")
    print_lines(console, f"\n{verdict(outcomes)}")


def _listed(outcomes: Sequence[Outcome]) -> list[tuple[str, list[Outcome]]]:
    judged = [(one, one.verdict) for one in outcomes if one.verdict is not None]
    found = [
        ("Claimed wrongly", [one for one, given in judged if given.wrong]),
        ("Called another stage", [one for one, given in judged if not (given.stage or given.silent or given.wrong)]),
        ("Did not run", [one for one in outcomes if one.verdict is None]),
    ]
    return [(heading, some) for heading, some in found if some]


def verdict(outcomes: Sequence[Outcome]) -> str:
    """The sum of all trials in one line."""
    found = figures_of(outcomes)
    failed = f", {found['failed']} did not run" if found["failed"] else ""
    return (
        f"{found['tried']} tried: right first stage of {_share(found, 'stage')}, right description of "
        f"{_share(found, 'described')}, wrong claims in {_share(found, 'wrong')}{failed}."
    )


def _share(found: dict[str, Any], name: str) -> str:
    """Percents with one digit.

    >>> _share({"tried": 8, "stage": 3}, "stage")
    '37.5 %'
    """
    return f"{100.0 * found[name] / found['tried']:.1f} %" if found["tried"] else "-"


def _short(text: str) -> str:
    return shown(text.replace("\n", " && "), LONGEST)


def _table(rows: dict[str, list[Outcome]]) -> Table:
    table = plain_table(*COLUMNS)
    for label, some in rows.items():
        found = figures_of(some)
        shares = [_share(found, name).removesuffix(" %") for name in SHARES]
        table.add_row(label, str(found["tried"]), *shares, f"{found['median']:.1f}", f"{found['worst']:.1f}")
    return table
