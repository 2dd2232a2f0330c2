"""`mha trials`: measure the diagnosis by wrong layers of which the truth is known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mha.cli.apart import Apart, worker_options
from mha.cli.common import COULD_NOT_RUN, DIFFERENT, EQUAL, CouldNotRun, OutputFile, as_one, progress

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.trials.unit import Outcome
    from conformance.workers.interpreters import Settings
    from mha_core.backend import Backend

SINGLES = 20
"""Layers with one fault that are tried if nothing is asked for."""


@dataclass(frozen=True)
class TrialsOptions:
    """The options of `mha trials`."""

    singles: int
    pairs: int
    triples: int
    gradients: int
    restricted: int
    seed: int
    zoo: bool
    rewritten: bool
    right: bool
    experiments: bool
    trial: str | None
    json_path: Path | None
    workers: int | None
    pythons: tuple[str, ...]

    @cached_property
    def apart(self) -> Apart:
        return Apart(self.workers, self.pythons)

    def ids(self, settings: Settings) -> list[str]:
        """What is to be tried. Raises SpecError where the bugs written anew are asked for and not there."""
        from conformance.trials.unit import (
            ids_of_backends,
            ids_of_natives,
            ids_of_rewritten,
            ids_of_right,
            ids_of_zoo,
        )

        numbered = {"": self.singles, "x2": self.pairs, "x3": self.triples, "g": self.gradients, "r": self.restricted}
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
                yield self.apart.one_backend(name, settings)[0]


@click.command()
@click.option("--singles", type=click.IntRange(min=0), default=0, help="So many layers with one fault.")
@click.option("--pairs", type=click.IntRange(min=0), default=0, help="So many with two.")
@click.option("--triples", type=click.IntRange(min=0), default=0, help="So many with three.")
@click.option("--gradients", type=click.IntRange(min=0), default=0, help="So many with a wrong gradient.")
@click.option("--restricted", type=click.IntRange(min=0), default=0, help="So many with one that take only some calls.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the faults.")
@click.option("--zoo", is_flag=True, help="Each bug of the zoo, of which only the output shows.")
@click.option("--rewritten", is_flag=True, help="The known bugs in other people's style, in a checkout's tests.")
@click.option(
    "--right",
    is_flag=True,
    help="Right layers, of which nothing may be said: backends too, and frameworks' own layers but for what is listed.",
)
@click.option(
    "--experiments/--no-experiments",
    default=True,
    help="Whether a layer is asked more than the cases, as in mha diagnose.",
)
@click.option("--trial", metavar="ID", help="One, as a report names it: its truth beside the diagnosis.")
@click.option("--json", "json_path", type=OutputFile(), help="Also write the figures to this file.")
@worker_options
@as_one(TrialsOptions)
def trials(asked: TrialsOptions) -> None:
    """Draw wrong layers whose faults are known, diagnose each from its outputs, and count what was right.

    A stage is right if the one that was called the first wrong one is one; a description, if its model gives the
    layer's numbers in problems that the diagnosis has not seen; a claim is wrong if it was made with confidence, and
    its model does not.

    Without any number, 20 layers with one fault are tried.

    Exit status: 0 nothing was claimed wrongly, 1 something was, 2 could not run.
    """
    from rich.console import Console

    from conformance.trials import report
    from conformance.workers import run_units
    from mha_core import SpecError

    console, errors = Console(), Console(stderr=True)
    try:
        if asked.trial is not None:
            sys.exit(DIFFERENT if _one(console, asked.trial, asked.experiments) else EQUAL)
        settings = asked.apart.settings()
        ids = asked.ids(settings)
    except SpecError as error:
        raise CouldNotRun(str(error)) from error

    from conformance.runner import until_interrupted
    from conformance.trials.unit import units_of

    with asked.apart.executor() as executor, progress(errors, len(ids), _of_outcome) as advance:

        def seen() -> Iterator[Outcome]:
            if asked.apart.in_this_process:
                found = (outcome for unit in units_of(ids, experiments=asked.experiments) for outcome in unit.run(0))
            else:
                found = (
                    outcome
                    for _, _, outcome in run_units(units_of(ids, experiments=asked.experiments), executor, settings)
                )
            for outcome in found:
                advance(outcome)
                yield outcome

        gathered, interrupted = until_interrupted(seen())
    outcomes = sorted(gathered, key=lambda one: ids.index(one.id))
    if outcomes:
        report.print_outcomes(console, outcomes)
    if interrupted:
        errors.print(f"interrupted: {len(outcomes)} of {len(ids)} are there", style="yellow")
    if asked.json_path is not None:
        from conformance.reports.text import to_json
        from mha_core.files.writing import write_json

        environment = to_json([], {})["environment"]
        write_json(
            asked.json_path,
            report.to_json(outcomes, seed=asked.seed, experiments=asked.experiments, environment=environment),
        )
    wrong = any(one.verdict is not None and one.verdict.wrong for one in outcomes)
    failed = interrupted or any(one.verdict is None for one in outcomes)
    sys.exit(DIFFERENT if wrong else COULD_NOT_RUN if failed else EQUAL)


def _of_outcome(outcome: Outcome) -> str:
    """The text of the progress bar after one."""
    return outcome.id


def _one(console: Console, id: str, experiments: bool) -> bool:
    """Print the truth of one trial and its diagnosis; whether something was claimed wrongly."""
    from conformance.diagnosis.text import describe
    from conformance.trials.report import SHARES
    from conformance.trials.unit import tried

    outcome, diagnosis = tried(id, experiments=experiments)
    assert outcome.verdict is not None
    judged = ", ".join(f"{name} {'yes' if getattr(outcome.verdict, name) else 'no'}" for name in SHARES)
    lines = [
        "The truth:",
        *(f"  {line}" for line in outcome.words.split("\n")),
        f"  A right first stage: {', '.join(sorted(_stages(id))) or 'none'}.",
        "",
        "The diagnosis:",
        *(f"  {line}".rstrip() for line in describe(diagnosis).split("\n")),
        "",
        f"Judged: {judged}; {outcome.seconds:.1f} s.",
    ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    return outcome.verdict.wrong


def _stages(id: str) -> frozenset[str]:
    from conformance.trials.unit import found_by

    return found_by(id)[0].stages
