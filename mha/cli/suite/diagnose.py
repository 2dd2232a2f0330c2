"""`mha diagnose`: find the bug of a subject, or of a recorded layer."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mha.cli.apart import Apart, worker_options
from mha.cli.common import DIFFERENT, EQUAL, CouldNotRun, as_one, says

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.diagnosis.diagnose import Diagnosis
    from mha.comparison.comparison import Comparison
    from mha.recordings.recording import Recording

Found = TypeVar("Found")


@dataclass(frozen=True)
class DiagnoseOptions:
    """The arguments and options of `mha diagnose`."""

    file: Path | None
    spec: str | None
    weights: Path | None
    compare: bool
    unseen: bool
    dtype: str | None
    patterns: tuple[str, ...]
    time_limit: float
    experiments: bool
    details: bool
    probes: tuple[str, ...]
    workers: int | None
    pythons: tuple[str, ...]


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--subject", "-s", "spec", help="What to diagnose, if not FILE: package.module:factory.")
@click.option("--weights", "-w", type=click.Path(path_type=Path), help="What the layers in FILE were meant to hold.")
@click.option(
    "--compare/--no-compare",
    default=True,
    help="Whether FILE is compared with what --weights recorded, call by call; else only its weights are used.",
)
@click.option(
    "--unseen/--no-unseen",
    default=True,
    help="Whether to say which bugs the calls in FILE would not have shown, if nothing differs.",
)
@click.option(
    "--dtype", "-d", help="Of a subject. Default: float64, which tells the most, or float32 if it takes no other."
)
@click.option("--case", "-c", "patterns", multiple=True, help="Only cases of this id; wildcards work (repeatable).")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds that the subject may take for one case.")
@click.option(
    "--experiments/--no-experiments",
    default=True,
    help="Whether a subject is asked more than the cases, so that what no bug on file explains is measured.",
)
@click.option("--details", is_flag=True, help="What each probe of the experiments showed.")
@click.option(
    "--probe", "-p", "probes", multiple=True, help="Show the numbers of this probe; wildcards work (repeatable)."
)
@worker_options
@as_one(DiagnoseOptions)
def diagnose(asked: DiagnoseOptions) -> None:
    """Name the stage since which a subject differs, and the bug that explains it.

    Of FILE, which mha.capture wrote, every recorded call is explained by one hypothesis. A wrongly ported
    layer is right by the weights that it holds: --weights names a file with those that it was meant to hold,
    canonical weights or a recording of the original, and the calls are judged by these. With a recording, both
    are compared as `mha compare` does as well: inputs, masks and outputs.

    Exit status: 0 nothing to explain, 1 it differs, 2 could not run.
    """
    from conformance.diagnosis.text import describe
    from mha_core import BackendError, SpecError

    if (asked.file is None) == (asked.spec is None):
        raise click.UsageError("Give either FILE or --subject.")
    if asked.file is not None and (asked.probes or asked.details):
        raise click.UsageError("--probe and --details belong to --subject: a recording can't be asked anything.")
    if asked.file is None and asked.weights is not None:
        raise click.UsageError("--weights belongs to FILE.")
    if asked.file is not None and asked.dtype is not None:
        raise click.UsageError("--dtype belongs to --subject; the calls in FILE have their own.")
    compared: Comparison | None = None
    try:
        if asked.probes:
            sys.exit(_probed(str(asked.spec), asked))
        if asked.file is not None:
            found, compared = _of_file(asked.file, asked.weights, asked.patterns, asked.compare)
        else:
            text, differs = _of_subject(str(asked.spec), asked)
            click.echo(text)
            sys.exit(DIFFERENT if differs else EQUAL)
    except (SpecError, BackendError, FileNotFoundError) as error:
        raise CouldNotRun(str(error)) from error
    click.echo("\n\n".join(describe(one, details=asked.details) for one in found))
    if asked.unseen and not any(diagnosis.differs for diagnosis in found):
        click.echo(f"\n{_unseen(asked.file, asked.patterns)}")
    parted = compared is not None and compared.different
    if parted and not any(diagnosis.differs for diagnosis in found):
        click.echo("\nThat is by its own inputs and masks, which are not the original's: see above.")
    sys.exit(DIFFERENT if parted or any(diagnosis.differs for diagnosis in found) else EQUAL)


def _of_subject(spec: str, asked: DiagnoseOptions) -> tuple[str, bool]:
    """The diagnosis in words, and whether the subject differs."""
    from conformance.cases import table as cases
    from conformance.deviations.known import load
    from conformance.diagnosis.apart import diagnosed

    chosen = tuple(case.id for case in cases.select(asked.patterns))
    return _in_the_first_dtype(spec, asked, diagnosed, (chosen, load(), asked.experiments, asked.details))


def _in_the_first_dtype(
    spec: str,
    asked: DiagnoseOptions,
    ask: Callable[..., Found],
    arguments: tuple[Any, ...],
    has_answers: Callable[[Found], object] = lambda found: True,
) -> Found:
    """What `ask(subject, *arguments)` finds in the dtype that was asked for; by default, in the first in which the
    subject answers at all.

    Raises:
        SpecError: there is no such subject, or it answers in none; what was wrong in the first.
    """
    from rich.console import Console

    from conformance.diagnosis.apart import beside_no_subject
    from conformance.subjects.function import DEFAULT_DTYPES
    from mha_core import SpecError

    apart = Apart(asked.workers, asked.pythons)
    first: SpecError | Found | None = None
    with apart.kept(), Console(stderr=True).status("") as status:
        settings = apart.settings((spec,))
        load = apart.loader(asked.time_limit, settings)
        for dtype in DEFAULT_DTYPES if asked.dtype is None else (asked.dtype,):
            try:
                found = beside_no_subject(settings, says(status), ask, load(spec, dtype), *arguments)
                if has_answers(found):
                    return found
            except SpecError as error:
                first = first or error
                continue
            first = first or found
    if isinstance(first, SpecError):
        raise first
    assert first is not None
    return first


def _probed(spec: str, asked: DiagnoseOptions) -> int:
    """Run some probes on a subject and print what they show; the exit status."""
    from conformance.diagnosis.apart import probed
    from conformance.measure.probes import select_probes

    select_probes(asked.probes)  # an unknown name ends the command before any work
    text, differs, _ = _in_the_first_dtype(spec, asked, probed, (asked.probes,), itemgetter(2))
    click.echo(text)
    return DIFFERENT if differs else EQUAL


def _of_file(
    file: Path, weights: Path | None, patterns: tuple[str, ...], compare: bool
) -> tuple[list[Diagnosis], Comparison | None]:
    """One diagnosis for each dtype of the recorded calls; and their comparison with calls of the original, or None."""
    from rich.console import Console

    from mha.recordings.explain import explain, intended
    from mha.recordings.recording import Recording

    recording = Recording.load(file)
    if recording.coverage is not None and recording.coverage.unread:
        click.echo(f"{recording.coverage.line}.\n")
    compared = None
    if weights is not None:
        if compare:
            compared = _compared(recording, weights, patterns)
        recording, lines = intended(recording, weights)
        click.echo("\n".join([*lines, ""]))
    with Console(stderr=True).status("") as status:
        return explain(recording, patterns=patterns or ("*",), progress=says(status)), compared


def _unseen(file: Path, patterns: tuple[str, ...]) -> str:
    """Which bugs the calls in FILE would not have shown, in words."""
    from mha.recordings.recording import Recording
    from mha.recordings.replay import selected
    from mha.undetectable_bugs.find import undetectable_bugs

    recording = Recording.load(file)
    return undetectable_bugs(recording, selected(recording, patterns or ("*",))).text()


def _compared(recording: Recording, weights: Path, patterns: tuple[str, ...]) -> Comparison | None:
    """Compare the recording with that of the original, and print the result; None if `weights` is no recording."""
    from rich.console import Console

    from mha.cli.porter.compare import show
    from mha.comparison.compare import compare
    from mha.recordings.explain import meant_by

    original = meant_by(weights)
    if isinstance(original, tuple):
        return None
    console = Console()
    with Console(stderr=True).status("") as status:
        found = compare(original, recording, patterns=patterns or ("*",), progress=says(status))
    show(console, found)
    console.print()
    return found
