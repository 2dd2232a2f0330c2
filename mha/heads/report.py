"""A report of `mha heads` on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import rich.table
from rich.console import Console
from rich.markup import escape

from mha.heads.tables import LIMITS, Report, Table, curve_tables, importance_tables, speed_table, total


def print_report(console: Console, report: Report, written: Path | None = None) -> None:
    """Print the whole report; `written` is the file of the cut layers."""

    def line(text: str = "", style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def show(table: Table) -> None:
        made = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="underline")
        for number, name in enumerate([table.corner, *table.columns]):
            made.add_column(name, justify="right" if number else "left", no_wrap=True)
        for name, cells in table.rows:
            made.add_row(name, *map(escape, cells))
        line(table.title, "bold")
        console.print(made)
        line()

    line(f"{report['model']}: {total(report)} heads in {len(report['layers'])} layers")
    if report["texts"]:
        line(f"Texts: {report['texts']}.")
    first = importance_tables(report)[0]
    show(replace(first, title=f"\nImportance by {first.title}; of the largest, in %"))
    for table in curve_tables(report):
        show(table)
    if report["pruned"] is not None:
        for text in pruned_lines(report["pruned"], total(report)):
            line(text)
        if written is not None:
            line(f"Written: {written}")
        line()
    if report["speed"] is not None:
        title = f"Times faster ({report['speed']['threads']} thread); in brackets what the arithmetic predicts"
        table = speed_table(report, lambda entry: f"{entry['ratio']:.2f} [{entry['predicted']:.2f}]")
        show(replace(table, title=title))
    for text in LIMITS:
        line(text)
    line(f"{report['cpu_seconds']:.0f} s of processor time.")


def pruned_lines(pruned: Mapping[str, Any], heads: int) -> Iterator[str]:
    """What was cut of so many heads, and the proof."""
    yield f"Cut {pruned['removed']} of {heads} heads, in the order of {pruned['measure']}. Left in each layer:"
    for name, own in pruned["kept"].items():
        yield f"  {name}: {len(own)} ({', '.join(map(str, own))})"
    if pruned["point"] is not None:
        yield f"Fidelity / nearest texts kept, on texts that no measure saw: {point_text(pruned['point'])}"
    yield "Cut = masked, worst error / allowed error of all layers:"
    for proof in pruned["proofs"]:
        words = f"{proof['worst']:.2g}, {proof['difference']:.1e} apart"
        yield f"  {proof['backend']}: {'did not run: ' + proof['failed'] if proof['failed'] else words}"
    if (live := pruned["live"]) is not None:
        apart = "the same bits" if live["identical"] else f"{live['difference']:.1e} apart"
        yield f"  live model, embeddings: {apart}; allowed {live['allowed']:.1e}"
    yield pruned["verdict"]


def point_text(point: Mapping[str, Any]) -> str:
    """Fidelity, and neighbours kept after a stroke.

    >>> point_text({"removed": 24, "fidelity": 0.914, "neighbours": 0.74})
    '0.91 / 0.74'
    """
    return " / ".join(f"{point[name]:.2f}" for name in ("fidelity", "neighbours") if point[name] is not None)
