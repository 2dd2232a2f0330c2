"""`mha trials`: measure the diagnosis by wrong layers of which the truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mha.cli import options
from mha.cli.apart import Apart
from mha.cli.common import consoles, finish, say, warn, write_asked
from mha.cli.options import option

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.trials.unit import Outcome
    from conformance.workers.interpreters import Settings
    from mha_core.backend import Backend

SINGLES = 20
"""Layers with one fault that are tried if nothing is asked for."""


def _number(name: str, help: str) -> Any:
    return option(name, type=click.IntRange(min=0), default=0, help=help)


class TrialsOptions(Apart):
    """The options of `mha trials`."""

    singles: int = _number("--singles", "So many layers with one fault.")
    pairs: int = _number("--pairs", "So many with two.")
    triples: int = _number("--triples", "So many with three.")
    gradients: int = _number("--gradients", "So many with a wrong gradient.")
    restricted: int = _number("--restricted", "So many with one that take only some calls.")
    seed: int = options.seed("faults")
    zoo: bool = options.flag("--zoo", "Each bug of the zoo, of which only the output shows.")
    rewritten: bool = options.flag("--rewritten", "The known bugs in other people's style, in a checkout's tests.")
    right: bool = options.flag(
        "--right",
        "Right layers, of which nothing may be said: backends too, and frameworks' own layers but for what is listed.",
    )
    experiments: bool = option(
        "--experiments/--no-experiments",
        default=True,
        help="Whether a layer is asked more than the cases, as in mha diagnose.",
    )
    trial: str | None = option(
        "--trial", metavar="ID", help="One, as a report names it: its truth beside the diagnosis."
    )
    json_path: Path | None = options.json_file("Also write the figures to this file.")

    def ids(self, settings: Settings) -> list[str]:
        """What is to be tried. Raises SpecError where the bugs written anew are asked for and not there."""
        from conformance.trials.unit import (
            ids_of_backends,
            ids_of_natives,
            ids_of_rewritten,
            ids_of_right,
            ids_of_zoo,
        )

        numbered = {
            "": self.singles,
            "x2": self.pairs,
            "x3": self.triples,
            "g": self.gradients,
            "r": self.restricted,
        }
        if not any((*numbered.values(), self.zoo, self.rewritten, self.right)):
            numbered[""] = SINGLES
        backends = list(self._usable(settings)) if self.right else []
        return [
            *(f"{self.seed}-{number}{ending}" for ending, count in numbered.items() for number in range(count)),
            *(ids_of_zoo() if self.zoo else ()),
            *(ids_of_rewritten() if self.rewritten else ()),
            *(ids_of_right() if self.right else ()),
            *ids_of_backends(backends),
            *ids_of_natives(backends),
        ]

    def _usable(self, settings: Settings) -> Iterator[Backend]:
        """The backends that are installed and can be used."""
        from mha_core import BackendError
        from mha_core.backend import names

        for name in names():
            with suppress(BackendError):
                yield self.one_backend(name, settings)[0]


@options.command(TrialsOptions)
def trials(asked: TrialsOptions) -> None:
    """Draw wrong layers whose faults are known, diagnose each from its outputs, and count what was right.

    A stage is right if the one that was called the first wrong one is one; a description, if its model gives the
    layer's numbers in problems that the diagnosis has not seen; a claim is wrong if it was made with confidence, and
    its model does not.

    Without any number, 20 layers with one fault are tried.

    Exit status: 0 nothing was claimed wrongly, 1 something was, 2 could not run.
    """
    from conformance.reports.text import to_json
    from conformance.trials import report
    from conformance.trials.unit import units_of
    from conformance.workers import run_units

    console, errors = consoles()
    if asked.trial is not None:
        finish(_one(console, asked.trial, asked.experiments))
    settings = asked.settings()
    ids = asked.ids(settings)
    units = units_of(ids, experiments=asked.experiments)

    def trying(executor: Executor) -> Iterator[Outcome]:
        if asked.in_this_process:
            return (outcome for unit in units for outcome in unit.run(0))
        return (outcome for _, _, outcome in run_units(units, executor, settings))

    gathered, interrupted = asked.gathered(errors, len(ids), lambda outcome: outcome.id, trying)
    outcomes = sorted(gathered, key=lambda one: ids.index(one.id))
    if outcomes:
        report.print_outcomes(console, outcomes)
    if interrupted:
        warn(errors, [f"interrupted: {len(outcomes)} of {len(ids)} are there"])
    environment = to_json([], {})["environment"]
    write_asked(
        asked.json_path,
        lambda: report.to_json(outcomes, seed=asked.seed, experiments=asked.experiments, environment=environment),
    )
    verdicts = [one.verdict for one in outcomes]
    finish(any(one is not None and one.wrong for one in verdicts), interrupted or None in verdicts)


def _one(console: Console, id: str, experiments: bool) -> bool:
    """Print the truth of one trial and its diagnosis; whether something was claimed wrongly."""
    from conformance.diagnosis.text import describe
    from conformance.trials.report import SHARES
    from conformance.trials.unit import found_by, tried

    outcome, diagnosis = tried(id, experiments=experiments)
    assert outcome.verdict is not None
    judged = ", ".join(f"{name} {'yes' if getattr(outcome.verdict, name) else 'no'}" for name in SHARES)
    say(
        console,
        "The truth:",
        *(f"  {line}" for line in outcome.words.split("\n")),
        f"  A right first stage: {', '.join(sorted(found_by(id)[0].stages)) or 'none'}.",
        "",
        "The diagnosis:",
        *(f"  {line}".rstrip() for line in describe(diagnosis).split("\n")),
        "",
        f"Judged: {judged}; {outcome.seconds:.1f} s.",
    )
    return outcome.verdict.wrong
