"""Results as tables for a terminal and as JSON for a program."""

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance.deviations.known import Deviations
from conformance.judging.result import Result
from conformance.reports.looked_at import LookedAt
from mha_core import STAGES
from mha_core.errors import listed
from mha_core.stages import is_gradient

WHY_FLOAT64 = (
    "something in it is, such as np.zeros(3), 1.0 - mask, or under NumPy 2 x / np.sqrt(8); write x * 8 ** -0.5"
)

SCHEMA_VERSION = 1
"""Version of the JSON report; a change that readers would notice raises it."""


def print_results(console: Console, results: Sequence[Result], looked_at: LookedAt | None = None) -> None:
    """Print the tables of errors (all cases; trained layers), every failure, what was covered, and the verdict."""
    console.print("Worst error / allowed error over all cases; equal means at most 1", style="bold")
    console.print(parity_table(results))
    if any(result.recorded for result in results):
        console.print(
            "\nTrained weights: largest difference from what the original implementation computed", style="bold"
        )
        console.print(recorded_table(results))
    console.print()
    failures = (failure_text(result) for result in results if result.status in ("different", "failed"))
    print_lines(console, *failures)
    print_lines(console, *repeat_lines(results), *gradient_lines(results), *deviation_lines(results))
    print_lines(console, *float64_lines(results))
    said = [] if looked_at is None else [looked_at.line]
    print_lines(console, *unsupported_lines(results), *said, verdict(results))


def parity_table(results: Sequence[Result]) -> Table:
    """Return a table with a row per subject, dtype and device: each stage's largest ratio of error to allowed error.

    All cases count, but known deviations are left out of the ratios, and counted in a column of their own.
    """
    table = plain_table()
    known = any(result.status == "deviates" for result in results)
    for name in ("", "equal", *(("known",) if known else ()), *STAGES, "gradients"):
        # A long name wraps in its own column before it squeezes the others.
        table.add_column(name, justify="right" if name else "left", no_wrap=bool(name), min_width=len(name))
    for group in _grouped(results):
        equal = sum(result.status == "equal" for result in group)
        deviating = sum(result.status == "deviates" for result in group)
        judged = sum(result.status != "unsupported" for result in group)
        ratios = [_ratio(_worst(group, name)) for name in (*STAGES, "gradients")]
        style = "green" if equal + deviating == judged else "bold red"
        counts = [f"[{style}]{equal}/{judged}[/]", *([f"{deviating}/{judged}"] if known else [])]
        table.add_row(escape(_subject(group[0])), *counts, *ratios)
    return table


def row_line(results: Sequence[Result]) -> str:
    """Return one line for a subject in one dtype: how many results are right, except for known deviations."""
    right = sum(result.status in ("equal", "deviates") for result in results)
    judged = sum(result.status != "unsupported" for result in results)
    listed = " or as listed" if any(result.status == "deviates" for result in results) else ""
    return f"{_subject(results[0])}: {right} of {judged} equal{listed}"


def recorded_table(results: Sequence[Result]) -> Table:
    """Return a table with a row per subject, dtype and device: the largest difference from each recorded original."""
    table = plain_table()
    recorded = sorted(
        {(result.case, stage) for result in results for stage in result.recorded},
        key=lambda pair: (pair[0], STAGES.index(pair[1])),
    )
    table.add_column("")
    for case, stage in recorded:
        layer = case.removeprefix("trained-").removesuffix("-layer")
        table.add_column(f"{layer}\n{stage}", justify="right", no_wrap=True, min_width=7)
    for group in _grouped(results):
        by_case = {result.case: result.recorded for result in group}
        cells = [by_case.get(case, {}).get(stage) for case, stage in recorded]
        table.add_row(escape(_subject(group[0])), *("-" if cell is None else f"{cell:.1e}" for cell in cells))
    return table


def failure_text(result: Result) -> str:
    """Return text on a failed result: its differences, the first wrong stage, and the command to run the case again."""
    head = f"{result.subject} {result.dtype} on {result.device}, case {result.case}:"
    if result.status == "failed":
        lines = [f"{head} did not run", f"  {result.message}"]
    else:
        first = result.mismatches[0]
        since = (
            f"different since stage {first.stage!r}" if not first.call else "right at first, different when asked again"
        )
        what = "not as listed" if result.stale else since
        lines = [f"{head} {what}"]
        lines += [f"  {mismatch.message}" for mismatch in result.mismatches]
    lines += [f"  {result.kept}"] if result.kept else []
    lines += [f"  left out: {', '.join(words)} ({why})" for why, words in result.left_out.items()]
    return "\n".join([*lines, f"  rerun: {result.rerun}"])


def repeat_lines(results: Sequence[Result]) -> list[str]:
    """Return one line for each subject whose first answers were right, and whose later ones were wrong."""
    return [
        f"{subject} {dtype} {text} in {len(names)} of its cases: {', '.join(names)}"
        for (subject, dtype, text), names in _cases_by(
            (result, "keeps something from one call to the next, or mixes the items of a batch,")
            for result in results
            if result.mismatches and result.mismatches[0].call
        ).items()
    ]


def gradient_lines(results: Sequence[Result]) -> list[str]:
    """Return one line for each subject that returned gradients in some cases that asked for them, but not in all."""
    lines = []
    for group in _grouped(results):
        answered = [result for result in group if result.judged and result.gradients_asked]
        without = [result.case for result in answered if not any(map(is_gradient, result.judged))]
        if without and len(without) < len(answered):
            counted = f"{len(answered) - len(without)} of {len(answered)}"
            lines.append(f"{_subject(group[0])} shows gradients in {counted} cases, and none in: {', '.join(without)}")
    return lines


def float64_lines(results: Sequence[Result]) -> list[str]:
    """Return one line for each subject that returned float64 arrays in a run of another dtype."""
    names: dict[str, dict[str, None]] = {}
    for result in results:
        if result.in_float64:
            names.setdefault(_subject(result), {}).update(dict.fromkeys(result.in_float64))
    return [f"{who} returns float64 ({listed(list(found), 3)}): {WHY_FLOAT64}" for who, found in names.items()]


def deviation_lines(results: Sequence[Result]) -> list[str]:
    """Return one line for each subject and known deviation that was seen."""
    return [
        f"{subject} {dtype} deviates as known in {len(names)} (mha deviations {identifier}): {', '.join(names)}"
        for (subject, dtype, identifier), names in _cases_by(
            (result, identifier) for result in results for identifier in result.deviations
        ).items()
    ]


def unsupported_lines(results: Sequence[Result]) -> list[str]:
    """Return one line for each subject and reason why it could not do some cases."""
    return [
        f"{subject} {dtype} left out {len(names)} ({message}): {', '.join(names)}"
        for (subject, dtype, message), names in _cases_by(
            (result, result.message) for result in results if result.status == "unsupported"
        ).items()
    ]


def _cases_by(pairs: Iterable[tuple[Result, str]]) -> dict[tuple[str, str, str], list[str]]:
    """Subject, dtype and a text -> the cases of which it is said."""
    cases: dict[tuple[str, str, str], list[str]] = {}
    for result, text in pairs:
        cases.setdefault((result.subject, result.dtype, text), []).append(result.case)
    return cases


def verdict(results: Sequence[Result]) -> str:
    """Return one line on the whole run."""
    counts = Counter(result.status for result in results)
    total = len(results) - counts["unsupported"]
    if not total:
        return "Nothing could be judged."
    left_out = f" {counts['unsupported']} more could not be expressed." if counts["unsupported"] else ""
    known = counts["deviates"]
    if counts["equal"] + known == total:
        listed = f", but for {known} that deviate{'s' * (known == 1)} as known" if known else ""
        return f"All {total} results are equal to the reference{listed}.{left_out}"
    differ = f"{counts['different']} of {total} results differ from the reference, {counts['failed']} did not run."
    return differ + (f" {known} deviate{'s' * (known == 1)} as known." if known else "") + left_out


def to_json(
    results: Iterable[Result],
    versions: dict[str, dict[str, str]],
    known: Deviations | None = None,
    could_not_run: Sequence[str] = (),
    looked_at: LookedAt | None = None,
    diagnoses: Sequence[Mapping[str, Any]] | None = (),
) -> dict[str, Any]:
    """Return the report as a dict of JSON values.

    Args:
        versions: backend -> package -> version.
        known: the table of known deviations. The report includes only the entries that results name.
        could_not_run: a line for each subject or backend that could not be used.
        looked_at: the description of the calls; None if no call had an answer.
        diagnoses: why subjects differ: results of `conformance.diagnosis.brief.Brief.to_dict`. None: not diagnosed.
    """
    found = list(results)
    named = {identifier for result in found for identifier in (*result.deviations, *result.gone)}
    entries = () if known is None else known.entries
    return {
        "schema": SCHEMA_VERSION,
        "environment": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "platform": platform.platform(),
            "backends": versions,
        },
        "results": [result.to_dict() for result in found],
        "deviations": [entry.to_dict() for entry in entries if entry.id in named],
        "could_not_run": list(could_not_run),
        "looked_at": None if looked_at is None else looked_at.to_dict(),
        **({} if diagnoses is None else {"diagnoses": list(diagnoses)}),
    }


def plain_table(*columns: str) -> Table:
    """Return a table without borders, with these column names. The first column is left-aligned, others right."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="underline")
    for position, name in enumerate(columns):
        table.add_column(name, justify="right" if position else "left", no_wrap=True)
    return table


def print_lines(console: Console, *lines: str, style: str | None = None) -> None:
    """Print each line verbatim, in `style` if given. rich's markup, highlighting and wrapping are switched off."""
    for line in lines:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def _subject(result: Result) -> str:
    device = "" if result.device == "cpu" else f" {result.device}"
    return f"{result.subject} {result.dtype}{device}"


def _grouped(results: Sequence[Result]) -> list[list[Result]]:
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.subject, result.dtype, result.device), []).append(result)
    return list(groups.values())


def _worst(group: list[Result], name: str) -> float | None:
    """The worst ratio of a stage, or of all "gradients.*"; None if nobody has it."""
    ratios = [
        ratio
        for result in group
        for array, ratio in result.ratios.items()
        if array.split(".")[0] == name and not (result.status == "deviates" and ratio > 1.0)
    ]
    return max(ratios, default=None)


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio:.2f}" if ratio <= 1.0 else f"[bold red]{ratio:.3g}[/]"
