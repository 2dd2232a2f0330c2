"""`mha diagnose`: say which bug a subject has."""

from __future__ import annotations

import sys

import click

from conformance.commands.common import DIFFERENT, EQUAL, CouldNotRun


@click.command()
@click.option("--subject", "-s", "spec", required=True, help="What to diagnose: package.module:factory.")
@click.option("--dtype", "-d", default="float64", show_default=True, help="float64 tells the most.")
@click.option("--case", "-c", "patterns", multiple=True, help="Only cases of this id; wildcards work (repeatable).")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds that the subject may take for one case.")
def diagnose(spec: str, dtype: str, patterns: tuple[str, ...], time_limit: float) -> None:
    """Name the stage since which a subject differs, and the bug that explains it.

    Exit status: 0 nothing to explain, 1 it differs, 2 could not run.
    """
    from rich.console import Console

    from conformance import cases
    from conformance.diagnose import diagnose as find
    from conformance.diagnosis_text import describe
    from conformance.subjects import load_subject
    from mha_core import SpecError

    errors = Console(stderr=True)
    try:
        selected = [case for case in cases.select(patterns) if patterns or not case.expensive]
        subject = load_subject(spec, dtype, time_limit=time_limit)
        with errors.status("") as status:
            found = find(subject, selected, progress=status.update)
    except SpecError as error:
        raise CouldNotRun(str(error)) from error
    click.echo(describe(found))
    sys.exit(DIFFERENT if found.failing else EQUAL)
