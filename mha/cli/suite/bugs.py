"""`mha bugs`: the bug zoo, and which case kills which bug."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mha.cli import options
from mha.cli.apart import Apart
from mha.cli.common import CouldNotRun, consoles, finish, progress, say, show_rows, write_asked

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.cases.case import Case
    from conformance.zoo.bug import Bug
    from conformance.zoo.kill import KillTable

SCHEMA_VERSION = 1
"""Version of the JSON file; a change that readers would notice raises it."""

SHOWN = 3
"""How many cases a line names before it counts the rest."""


class BugsOptions(Apart):
    """The options of `mha bugs`."""

    ids: tuple[str, ...] = options.argument(nargs=-1, metavar="[BUG]...")
    patterns: tuple[str, ...] = options.several(
        "--bug", "-b", help="Only bugs of this id; wildcards work (repeatable)."
    )
    kill: bool = options.flag("--kill", "Run the suite over them and print which case kills which.")
    case_patterns: tuple[str, ...] = options.cases("With --kill: only these cases (repeatable).")
    json_path: Path | None = options.json_file("With --kill: also write the whole table to this file.")


@options.command(BugsOptions)
def bugs(asked: BugsOptions) -> None:
    """List the bugs that the suite must catch, or only those named BUG; with --kill, check that it catches them.

    Exit status: 0; 1 a bug that can change a result was not caught; 2 could not run.
    """
    from conformance.cases import table as cases
    from conformance.zoo import registry

    if not asked.kill and (asked.case_patterns or asked.json_path is not None):
        raise CouldNotRun("--case and --json belong to --kill")
    selected, selected_cases = registry.select((*asked.ids, *asked.patterns)), cases.select(asked.case_patterns)
    console, errors = consoles()
    if not asked.kill:
        show_rows(console, ("bug", "what is wrong", "shows in", "what to change"), map(_row, selected))
        return
    table = _killed(errors, selected, selected_cases, asked)
    _print(console, table)
    write_asked(asked.json_path, lambda: _to_json(table))
    finish(table.not_killed() or table.killed_equivalents())


def _killed(errors: Console, selected: Sequence[Bug], cases: Sequence[Case], asked: BugsOptions) -> KillTable:
    """The table, with a progress bar that counts cases."""
    from conformance.zoo.kill import kill, kill_apart

    settings = asked.settings()
    with asked.executor() as executor, progress(errors, len(cases), attrgetter("id")) as advance:
        if asked.in_this_process:
            return kill(selected, cases, progress=advance)
        return kill_apart(selected, cases, executor, settings, progress=advance)


def _row(bug: Bug) -> tuple[str, str, str, str]:
    sentence = f"{bug.sentence} Seen in {bug.seen_in}." if bug.seen_in else bug.sentence
    return bug.id, sentence, bug.stage, f"Equivalent: {bug.equivalent}" if bug.equivalent else bug.fix


def _print(console: Console, table: KillTable) -> None:
    from mha_core.errors import listed

    by_bug = []
    for bug in table.bugs:
        killers = table.killers(bug)
        count = "equivalent" if bug.equivalent else str(len(killers)) if killers else "survives"
        by_bug.append((bug.id, bug.stage, count, listed(killers, SHOWN)))
    by_case = ((case.id, str(len(table.killed_by(case))), ", ".join(table.alone(case))) for case in table.cases)
    say(console, "Bug by bug")
    show_rows(console, ("bug", "shows in", "killed by", "cases"), by_bug)
    say(console, "\nCase by case")
    show_rows(console, ("case", "kills", "which no other case kills"), by_case)
    say(console, _verdict(table))


def _verdict(table: KillTable) -> str:
    from mha_core.errors import listed

    to_be_killed, not_killed = table.to_be_killed(), table.not_killed()
    lines = [
        "",
        f"{len(to_be_killed) - len(not_killed)} of {len(to_be_killed)} bugs killed by {len(table.cases)} cases "
        f"in {' and '.join(table.dtypes)} together.",
    ]
    lines += [f"survives: {bug.id}. {bug.sentence}" for bug in not_killed]
    lines += [
        f"said to be equivalent, but killed by {listed(table.killers(b), SHOWN)}: {b.id}"
        for b in table.killed_equivalents()
    ]
    lines += [f"equivalent: {bug.id}. {bug.equivalent}" for bug in table.bugs if bug.equivalent]
    smallest = table.smallest_set()
    lines.append(f"The fewest cases that kill as many: {len(smallest)} ({', '.join(smallest)}).")
    return "\n".join(lines)


def _to_json(table: KillTable) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "dtypes": list(table.dtypes),
        "cases": [case.id for case in table.cases],
        "bugs": [
            {
                "id": bug.id,
                "sentence": bug.sentence,
                "stage": bug.stage,
                "fix": bug.fix,
                "seen_in": bug.seen_in,
                "equivalent": bug.equivalent,
                "killed_by": {case: dict(stages) for case, stages in table.first_stages[bug.id].items() if stages},
                "impossible_in": [case.id for case in table.cases if (bug.id, case.id) in table.impossible],
            }
            for bug in table.bugs
        ],
        "smallest_set": list(table.smallest_set()),
    }
