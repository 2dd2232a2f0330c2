"""A Comparison in words: the findings, a table of all pairs, and a last line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from mha.comparison.arrays import PARTS, Difference, number
from mha.comparison.comparison import Comparison, Pair
from mha.comparison.ends import EndPair
from mha_core.errors import listed

MOST_FINDINGS = 12
"""Most findings that are written out."""


def findings(pairs: Sequence[Pair]) -> Iterator[str]:
    """The differences in words, in the order of the calls, equal ones once; then their consequences."""
    alike: dict[tuple[str, str], list[str]] = {}
    for pair in pairs:
        for difference in pair.causes:
            if difference.part != "inputs" or difference.name == "shapes":
                alike.setdefault((difference.part, difference.message), []).append(pair.original)
    said = set()
    following: list[str] = []
    before: Pair | None = None
    for pair in pairs:
        for difference in pair.causes:
            key = difference.part, difference.message
            if key not in alike:
                yield _inputs(pair, difference, before)
            elif key not in said:
                said.add(key)
                yield _other(pair, difference, alike[key])
        if any(difference.follows for difference in pair.differences):
            following.append(pair.original)
        before = pair
    if following:
        yield (
            f"{listed(following, 1)}: given other inputs, as must be after that. What else may part them there, "
            "outside attention, shows when the first is mended."
        )


def _inputs(pair: Pair, difference: Difference, before: Pair | None) -> str:
    if before is None:
        place = "the first call: look before it (embeddings, positions, normalisation, the words themselves)"
    else:
        place = f"{before.original}'s outputs agree: look between them"
    return f"inputs of {pair.original} part, {place}. Its {difference.message}.{_moved(difference, pair)}"


def _other(pair: Pair, difference: Difference, names: Sequence[str]) -> str:
    verb = "parts" if difference.part in ("mask", "past", "config") else "part"
    return f"{listed(names, 1)}: {difference.part} {verb}: {difference.message}.{_moved(difference, pair)}"


def _moved(difference: Difference, pair: Pair) -> str:
    """The effect of a difference on the output, in words."""
    if difference.moves is None or pair.allowed is None:
        return ""
    what = {"inputs": "This", "past": "This", "mask": "The port's mask"}.get(difference.part, "The port's layer")
    if difference.moves > pair.allowed:
        return f" {what} alone moves the original's output by up to {number(difference.moves)}."
    return f" {what} alone moves the original's output by {number(difference.moves)}: these calls don't show it."


def other_dtypes(pairs: Sequence[Pair]) -> Iterator[str]:
    """A remark where the port computes in another dtype, once for each pair of dtypes."""
    for original, port in dict.fromkeys(pair.dtypes for pair in pairs):
        if original != port:
            yield f"The port computes in {port}, the original in {original}; equal are weights that are after rounding."


def table(comparison: Comparison) -> Table:
    """A table with one row per pair: which parts are equal, and how large the differences of the others are."""
    found = Table(box=None, padding=(0, 1, 0, 0), header_style="underline")
    found.add_column("")
    past = any(difference.part == "past" for pair in comparison.pairs for difference in pair.differences)
    columns = [name for name in PARTS if name != "past" or past]
    for name in columns:
        found.add_column(name, justify="right", no_wrap=True)
    for name in ("difference", "allowed"):
        found.add_column(name, justify="right", no_wrap=True)
    for pair in comparison.pairs:
        cells = [_cell(pair, name) for name in columns]
        numbers = ["-" if value is None else f"{value:.1e}" for value in (pair.distance, pair.allowed)]
        found.add_row(escape(pair.name), *cells, *numbers)
    return found


def _cell(pair: Pair, part: str) -> str:
    state = pair.state(part)
    if state == "equal":
        ratios = {"inputs": pair.inputs, "outputs": max(pair.own)}
        ratio = ratios.get(part)
        return f"[green]{'equal' if ratio is None else f'{ratio:.2g}'}[/]"
    if state == "different":
        return "[bold red]parts[/]"
    return f"[yellow]{'follows' if state == 'follows' else '-'}[/]"


def lines(comparison: Comparison) -> Iterator[str]:
    """The report: findings, calls without a partner, remarks, and the verdict."""
    for finding in comparison.findings[:MOST_FINDINGS]:
        yield f"- {finding}"
    more = len(comparison.findings) - MOST_FINDINGS
    if more > 0:
        yield f"- and {more} more"
    yield from (f"- {_end(end)}" for end in comparison.ends if end.message)
    yield from (f"- {line}" for line in comparison.unpaired)
    yield from (f"- {name}: no answer that can be compared: {reason}" for name, reason in comparison.failed.items())
    noted: dict[str, list[str]] = {}
    for pair in comparison.pairs:
        for note in pair.notes:
            noted.setdefault(note, []).append(pair.original)
    for note, names in noted.items():
        yield f"Note: {listed(names, 1)}: {note}."
    yield from comparison.unjudged
    yield verdict(comparison)
    if comparison.unseen is not None:
        yield comparison.unseen.text()


def _end(end: EndPair) -> str:
    if end.follows:
        return f"{end.name} gives something else, as must be after that."
    behind = f"{end.after}'s outputs agree: look behind it" if end.after else "no attention layer stands before it"
    return (
        f"what {end.name} gives parts, {behind} (feed-forward layers, normalisation, a pooler, a head): {end.message}."
    )


def verdict(comparison: Comparison) -> str:
    """The result of the whole comparison in one line."""
    pairs = "1 pair of calls" if len(comparison.pairs) == 1 else f"{len(comparison.pairs)} pairs of calls"
    if comparison.first is not None:
        pair, difference = comparison.first
        name = f" ({difference.name})" if difference.name else ""
        return f"Different: {pair.original} is the first of {pairs} to part, in {difference.part}{name}."
    parted = next((end for end in comparison.ends if end.message), None)
    if parted is not None:
        return f"Different: {pairs} agree, and what {parted.name} gives parts."
    if comparison.unpaired:
        return f"Different: {pairs} agree, and there are calls without a partner."
    judged = [end for end in comparison.ends if end.arrays]
    if comparison.failed:
        return f"Could not be run: {len(comparison.failed)} of {len(comparison.failed) + len(comparison.pairs)} calls."
    ends = f"; and what {' and '.join(dict.fromkeys(end.name for end in judged))} gives" if judged else ""
    return f"Equal: {pairs}, in inputs, masks, settings, weights and outputs{ends}."
