"""The report of `mha heads` as one HTML page that needs nothing else: no network, no other file, no script."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from conformance.reports.selfcontained import template
from mha.heads.page.plots import plot
from mha.heads.tables import LIMITS, SCHEMA_VERSION, Report, curve_tables, importance_tables, speed_table, total
from mha_core import SpecError
from mha_core.files.writing import write_whole


def write_page(path: Path, report: Report) -> None:
    """Write the page, atomically.

    Args:
        path: the file; an old one is replaced.
        report: what `measure_heads` returns, or the content of a file that --json wrote.

    Raises:
        SpecError: it is no such report, or one of another schema.
    """
    write_whole(path, render(report).encode())


def render(report: Report) -> str:
    """The page as text. SpecError as `write_page`.

    >>> render({"schema": 7})
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: a report of schema 7 can't be shown; it must be 3
    """
    if report.get("schema") != SCHEMA_VERSION:
        raise SpecError(f"a report of schema {report.get('schema')!r} can't be shown; it must be {SCHEMA_VERSION}")
    return template("mha.heads.page", "heads.html.j2").render(
        report=report,
        total=total(report),
        grids=importance_tables(report),
        plots=plots_of(report),
        curves=curve_tables(report),
        timings=[speed_table(report)] if report["speed"] else [],
        limits=LIMITS,
    )


def plots_of(report: Report) -> list[dict[str, str]]:
    """The frontier, if speed was measured, and the curves. None of a recording."""
    curves, found = report["curves"], []
    if curves is None:
        return []
    if report["speed"]:
        first = report["speed"]["rows"][0]
        entries, (batch, tokens) = first["entries"], first["size"]
        faster = {float(entry["name"]): entry["ratio"] for entry in entries}
        spans = {entry["ratio"]: (entry["ratio_lower"], entry["ratio_upper"]) for entry in entries[1:]}
        lines = {
            name: [(faster[point["removed"]], point["fidelity"]) for point in points if point["removed"] in faster]
            for name, points in curves["measures"].items()
        }
        title = f"What is left, against how much faster the model is: batch {batch}, {tokens} tokens"
        axes = {"x": "times faster", "y": "mean cosine with the whole model"}
        found.append({"title": title, "svg": plot("frontier", lines, label=title, spans=spans, **axes)})
    for what, words in (("fidelity", "Mean cosine with the whole model"), ("neighbours", "Nearest texts kept")):
        if curves["none"][what] is not None:
            lines = _lines(curves["measures"], what)
            title = f"{words}, against heads removed of {total(report)}"
            svg = plot(what, lines, x="heads removed", y=words.lower(), label=title)
            found.append({"title": title, "svg": svg})
    return found


def _lines(measures: Mapping[str, list[dict[str, float]]], what: str) -> dict[str, list[tuple[float, float]]]:
    return {name: [(point["removed"], point[what]) for point in points] for name, points in measures.items()}
