"""`mha diagnose`: find the bug of a subject, or of a recorded layer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from mha.cli import options
from mha.cli.apart import Apart
from mha.cli.common import CouldNotRun, consoles, finish, say, says, write_asked
from mha.cli.options import option

if TYPE_CHECKING:
    from conformance.reports.brief import Brief
    from mha.recordings.explain import LayersExplained
    from mha.recordings.recording import Recording
    from mha.substitution.reports.report import WhereReport

SCHEMA_VERSION = 1

BY_WEIGHTS = "It is right by the weights that it holds, so that these are the cause: see above which differ."

BY_SETTINGS = "It is right by the settings that it has, so that these are the cause: {}."

BY_BOTH = (
    "It is right by the weights and settings that it has, so that these are the cause: {}; of weights, see above which "
    "differ."
)

OWN_WEIGHTS = (
    "That is by the weights that it holds. Of a port: mha diagnose {} --weights ORIGINAL (a recording of the original, "
    "or a file of its weights)."
)


ASSUMED = (
    "Assumed of {0}: {1}. Nothing said it, and the numbers do not confirm it: what follows hangs on it. Say it in "
    "mha.Projections, and record again.\n"
)

MASK_NAMED = re.compile(r"(?:.*, )?(\w+) true where ")
"""A pattern of what is assumed of a call whose mask is the one argument of that name."""

OF_ALLOWED = re.compile(r"(?<![\w`])allowed(?= (?:is|broadcasts) )")
"""The mask `allowed`, where a sentence on it begins."""

TAKEN = "Nothing said this of {0}: {1}. It is taken so: with the cause above, that gives every recorded number."


class DiagnoseOptions(Apart):
    """The argument and options of `mha diagnose`."""

    file: Path | None = options.path_argument(required=False)
    spec: str | None = option(
        "--subject", "-s", help="What to diagnose, if not FILE: MODULE:NAME, such as mine:attention."
    )
    weights: Path | None = options.any_path("--weights", "-w", help="What the layers in FILE were meant to hold.")
    compare: bool = option(
        "--compare/--no-compare",
        default=True,
        help="Whether FILE is compared with what --weights recorded, call by call; else only its weights are used.",
    )
    num_heads: int | None = option(
        "--num-heads",
        type=click.IntRange(min=1),
        help="How many heads the layers have whose weights --weights names, if nothing in that file says it.",
    )
    unseen: bool | None = options.unseen("the calls in FILE")
    dtype: str | None = option(
        "--dtype",
        "-d",
        help="Of a subject. Default: float64, which tells the most, or float32 if it takes no other.",
    )
    patterns: tuple[str, ...] = options.cases()
    time_limit: float = options.time_limit("the subject")
    experiments: bool = option(
        "--experiments/--no-experiments",
        default=True,
        help="Whether a subject is asked more than the cases, so that what no bug on file explains is measured.",
    )
    details: bool = options.flag("--details", "All of it, and what each isolating problem showed.")
    json_path: Path | None = options.json_file("Also write to this file whether it differs, and what is said.")

    def check(self) -> None:
        """Raise UsageError if options do not fit each other."""
        from mha_core.files.mistaken import TO_RECORD, layer_in, names_code, spec_of

        if self.spec is None and self.file is not None and (names_code(self.file) or self.file.suffix == ".py"):
            of_layer = f"{TO_RECORD}; then mha diagnose calls.safetensors" * bool(layer_in(self.file))
            command = of_layer or f"mha diagnose --subject {spec_of(self.file)}"
            raise CouldNotRun(f"{self.file} is code, and no recording: {command}")
        if self.file is None and self.spec is None:
            raise CouldNotRun(
                "give your own layer, as in `mha diagnose --subject mine:attention`, or a recording of one, as in `mha "
                'diagnose calls.safetensors`, which mha.capture(model, "calls.safetensors") writes'
            )
        if self.file is not None and self.spec is not None:
            raise CouldNotRun(f"give either {self.file} or --subject {self.spec}, not both")
        if self.file is not None and self.details:
            raise click.UsageError(
                "--details belongs to --subject: a recording can't be asked more, and all that is known is said. "
                f"`mha replay {self.file} --json RESULTS.json` writes how far off each call is."
            )
        if self.file is None and self.weights is not None:
            raise click.UsageError(
                "--weights belongs to a recording: a subject is given its weights. Record a layer that holds its own: "
                'mha.capture(model, "calls.safetensors").'
            )
        if self.weights is None and self.num_heads is not None:
            raise click.UsageError("--num-heads says what a file of weights does not: it needs --weights FILE")
        if self.file is not None and self.dtype is not None:
            raise click.UsageError("--dtype belongs to --subject; the calls in FILE have their own.")

    def end(self, status: int, texts: list[str]) -> NoReturn:
        """Write the texts to the file that --json names, and end the command with this status."""
        write_asked(self.json_path, lambda: {"schema": SCHEMA_VERSION, "differs": status == 1, "diagnoses": texts})
        finish(status == 1, status)


@options.command(
    DiagnoseOptions,
    "mha diagnose --subject mine:attention",
    "mha diagnose port.safetensors --weights original.safetensors",
)
def diagnose(asked: DiagnoseOptions) -> None:
    """Say what is wrong with your layer, or with a recorded one: the stage, the bug, what to change.

    FILE is a recording of mha.capture. All calls of a layer in it are explained by one hypothesis, and layers with the
    same one are told together. Calls are judged with the weights that the layer holds, so wrong weights are not found
    by default. --weights names a file of the right weights, or a recording of the original: calls are judged with those
    weights. The inputs, masks and outputs in such a recording are compared too, as `mha where` does.

    Weights alone do not say how many heads a layer has: --num-heads does.

    Exit status: 0 nothing to explain, 1 it differs, 2 could not run, a module that looks like attention was not
    recorded, or nothing says how many heads it was meant to have.
    """
    asked.check()
    if asked.file is None:
        told = _of_subject(str(asked.spec), asked)
        click.echo(told.text if asked.details else "\n".join(told.rows(consoles()[0].width)))
        asked.end(told.status, [told.text])
    found, compared, left, masks, behind, unsaid, causes = _of_file(asked.file, asked)
    texts = [text for one in found for text in _told(one, asked.file, asked.weights, causes)]
    parted = compared is not None and not compared.equal
    if unsaid or parted:
        from conformance.diagnosis.brief import NOTHING

        texts = [text.replace(NOTHING, "") for text in texts]
    texts += [behind] if behind else []
    texts = texts if len(masks) != 1 else [OF_ALLOWED.sub(f"{masks[0]} (read as `allowed`)", text) for text in texts]
    click.echo("\n\n".join(texts))
    differs = any(diagnosis.differs for one in found for _, diagnosis in one.found)
    if asked.weights is None and not differs:
        click.echo(f"\n{OWN_WEIGHTS.format(asked.file)}")
    if unsaid:
        click.echo(f"\nNot proved: {unsaid}")
    if asked.unseen is not False and not differs and not parted:
        click.echo(f"\n{_unseen(asked.file, asked.patterns, whole=bool(asked.unseen))}")
    if parted and not differs:
        click.echo("\nThat is of its attention, on the inputs and masks that it was given. What differs is said above.")
    if left:
        click.echo(f"\n{left}")
    asked.end(int(parted or differs) or 2 * bool(left or unsaid), texts)


def _of_subject(spec: str, asked: DiagnoseOptions) -> Brief:
    """Return what is said of the subject, in the dtype that was asked for; its status is the exit status.

    By default that is the first dtype in which something is wrong, else the first in which the subject answers.

    Raises:
        SpecError: there is no such subject, or it answers in none; what was wrong in the first.
    """
    from conformance.cases import table as cases
    from conformance.deviations.known import load as load_deviations
    from conformance.diagnosis.apart import beside_no_subject, diagnosed
    from conformance.subjects.function import DEFAULT_DTYPES
    from mha_core import SpecError

    chosen = tuple(case.id for case in cases.select_asked(asked.patterns))
    arguments = (chosen, load_deviations(), asked.experiments, asked.details)
    first: SpecError | Brief | None = None
    with asked.kept(), consoles()[1].status("") as status:
        settings = asked.settings((spec,))
        load = asked.loader(asked.time_limit, settings)
        for dtype in DEFAULT_DTYPES if asked.dtype is None else (asked.dtype,):
            try:
                found = beside_no_subject(settings, says(status), diagnosed, load(spec, dtype), *arguments)
            except SpecError as error:
                first = first or error
                continue
            if found.status:
                return found
            first = found if first is None or isinstance(first, SpecError) else first
    if isinstance(first, SpecError):
        raise first
    assert first is not None
    return first


def _of_file(
    file: Path, asked: DiagnoseOptions
) -> tuple[list[LayersExplained], WhereReport | None, str, list[str], str, str, dict[str, str]]:
    """Return what explains the recorded calls, for each dtype; their comparison with the original's, or None; what was
    not recorded, in a line, or ""; the names of arguments that were read as the mask `allowed`; what no reference
    judges and what was taken as nobody said it, in lines, or ""; what nothing says of the weights, in a line, or "";
    and what `_causes` returns.
    """
    from mha.models.beside import heads_beside
    from mha.recordings.explain import explain_layers, intended, of_weights_alone
    from mha.recordings.meant import Meant, meant_by
    from mha.recordings.recording import Recording
    from mha_core.errors import shown

    weights, patterns = asked.weights, asked.patterns
    recording = held = Recording.load(file)
    left = "" if recording.coverage is None or patterns else recording.coverage.not_judged
    if recording.coverage is not None and recording.coverage.unread and not left:
        click.echo(f"{recording.coverage.line}.\n")
    compared, unsaid, causes = None, "", dict[str, str]()
    if weights is not None:
        original = meant_by(weights, recording, num_heads=asked.num_heads, beside=heads_beside(weights))
        if isinstance(original, Meant):
            unsaid = original.unsaid
        elif asked.compare:
            compared = _compared(original, recording, patterns)
        recording, lines = intended(recording, weights, original)
        causes = _causes(recording, held, f"{shown(weights)} has" if asked.num_heads is None else "the original has")
        click.echo("\n".join([*lines, ""]))
    with consoles()[1].status("") as status:
        found = explain_layers(recording, patterns=patterns or ("*",), progress=says(status))
        found = found if weights is None else of_weights_alone(found, held)
    behind = [] if compared is not None else [recording.not_behind]
    for line in _assumed(recording, found):
        if line.startswith(TAKEN.partition("{")[0]):  # the answer comes first
            behind.append(line)
        else:
            click.echo(line)
    masks = [name[1] for call in held.calls if (name := MASK_NAMED.match(call.assumed))]
    return found, compared, left, list(dict.fromkeys(masks)), "\n\n".join(filter(None, behind)), unsaid, causes


def _causes(meant: Recording, held: Recording, has: str) -> dict[str, str]:
    """Return name of a layer -> what is said of the settings in which it differs from what it was meant to be.

    Words `has` are "X has", where X says what it was meant to be.
    """
    from mha.recordings.origins import WeightIndex
    from mha.substitution.recorded.weights import layer_differences

    index, causes = WeightIndex(meant.layers), {}
    for right, own in zip(meant.layers, held.layers, strict=True):
        found, _ = layer_differences(right, own, index)
        settings = [one.message.replace("the original's is", has) for one in found if one.part == "config"]
        if settings:
            said = BY_SETTINGS if len(settings) == len(found) else BY_BOTH
            causes[own.name] = said.format("; ".join(settings))
    return causes


def _assumed(recording: Recording, found: Sequence[LayersExplained]) -> Iterator[str]:
    """Yield what nothing said of the layers, for each such settings once: as far as a diagnosis gives their numbers, as
    that takes it.
    """
    from mha.recordings.explain import INVERTED

    otherwise = {name: turn for one in found for name, turn in one.otherwise.items()}
    given = {
        name
        for one in found
        for names, diagnosis in one.found
        if diagnosis.explanations and not any(bug.id in INVERTED for one in diagnosis.explanations for bug in one.bugs)
        for name in names
    }
    lines = dict[str, str]()
    for call in recording.calls:
        name = recording.layers[call.layer].name
        turn = otherwise.get(name)
        words = (turn and turn(call.assumed)) or call.assumed
        if words:
            lines.setdefault(words, (TAKEN if name in given else ASSUMED).format(name or "the layer", words))
    yield from lines.values()


def _told(explained: LayersExplained, file: Path, weights: Path | None, causes: Mapping[str, str]) -> list[str]:
    """Return a text for each group of layers that differ alike, and one for the others; `causes` is of `_causes`."""
    from conformance.diagnosis.brief import NO_CAUSE, describe
    from mha.recordings.recording import NAMED
    from mha_core.errors import listed

    def names(layers: Iterable[str]) -> str:
        return listed([name or "the layer itself" for name in layers], NAMED)

    texts, rest = [], []
    for layers, diagnosis in explained.found:
        alike = f"{names(layers[:1])}, and likewise {names(layers[1:])}:\n" if diagnosis.differs and layers[1:] else ""
        text = alike + describe(diagnosis)
        held = set(layers) <= set(explained.by_weights)
        own = " ".join(dict.fromkeys(causes.get(name, BY_WEIGHTS) for name in layers))
        texts.append(text.replace(NO_CAUSE, own) if held else text)
    if explained.beyond:
        given = () if weights is None else ("--weights", weights)
        command = shlex.join(map(str, ("mha", "diagnose", file, *given, "-c", next(iter(explained.beyond.values())))))
        rest.append(
            f"{len(explained.beyond)} more differ, which nothing above explains: {names(explained.beyond)}. "
            f"No other bug was tried on them: {command} does."
        )
    if explained.after_nan:
        rest.append(f"NaN where an earlier layer gave NaN, which is not judged: {names(explained.after_nan)}.")
    if explained.right:
        rest.append(f"Right: {names(explained.right)}.")
    return [*texts, "\n".join(rest)] if rest else texts


def _unseen(file: Path, patterns: tuple[str, ...], *, whole: bool) -> str:
    """Which bugs the calls in FILE would not have shown, in words."""
    from mha.recordings.recording import Recording
    from mha.recordings.replay import selected
    from mha.undetectable_bugs.find import undetectable_bugs

    recording = Recording.load(file)
    return undetectable_bugs(recording, selected(recording, patterns or ("*",))).text(whole=whole)


def _compared(original: Recording, recording: Recording, patterns: tuple[str, ...]) -> WhereReport:
    """Compare the recording with that of the original, and print the result."""
    from mha.recordings.origins import DIAGNOSED
    from mha.substitution.recorded.walk import recordings_apart
    from mha.substitution.reports.text import findings, last_line, tree

    console, errors = consoles()
    with errors.status("") as status:
        found = recordings_apart(original, recording, patterns=patterns or ("*",), unseen=False, progress=says(status))
    said = [line.replace(DIAGNOSED, "") for line in findings(found)]  # which is this command
    say(console, *said, "", *tree(found), "", last_line(found), "")
    return found
