"""The report of `mha heads` as one HTML page that needs nothing else: no network, no other file, no script."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from mha.heads.importance import MEASURES
from mha.heads.page.plots import plot
from mha.heads.report import LIMITS, SCHEMA_VERSION, short_names
from mha_core import SpecError
from mha_core.files.writing import write_whole

STEPS = 5
"""Shades of the grid of importances."""


def write_page(path: Path, report: Mapping[str, Any]) -> None:
    """Write the page, atomically.

    Args:
        path: the file; an old one is replaced.
        report: `HeadsReport.to_dict()`, or the content of a file that --json wrote.

    Raises:
        SpecError: it is no such report, or one of another schema.
    """
    write_whole(path, render(report).encode())


def render(report: Mapping[str, Any]) -> str:
    """The page as text. SpecError as `write_page`.

    >>> render({"schema": 7})
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: a report of schema 7 can't be shown; it must be 2
    """
    if report.get("schema") != SCHEMA_VERSION:
        raise SpecError(f"a report of schema {report.get('schema')!r} can't be shown; it must be {SCHEMA_VERSION}")
    total = sum(layer["heads"] for layer in report["layers"])
    curves = report["curves"]
    return _template().render(
        report=report,
        total=total,
        grids=[_grid(report, name) for name in report["importance"]],
        plots=[] if curves is None else plots_of(report, total),
        tables=[] if curves is None else tables_of(curves),
        timings=[] if report["speed"] is None else timings_of(report["speed"]),
        limits=LIMITS,
    )


def _grid(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The importances of one measure, as shares of the largest with a shade."""
    scores = report["importance"][name]
    largest = max(max(row) for row in scores) or 1.0
    shared, names = short_names([layer["name"] for layer in report["layers"]])
    rows = [[(f"{100 * one / largest:.0f}", round((STEPS - 1) * one / largest)) for one in row] for row in scores]
    return {
        "name": name,
        "about": MEASURES[name].about,
        "shared": shared or "layer",
        "heads": max(map(len, rows)),
        "rows": list(zip(names, rows, strict=True)),
    }


def plots_of(report: Mapping[str, Any], total: int) -> list[dict[str, str]]:
    """The frontier, if speed was measured, and the curves."""
    curves, found = report["curves"], []
    times = _times_faster(report["speed"])
    if times is not None:
        size, faster, spans = times
        lines = {
            name: [(faster[p["removed"]], p["fidelity"]) for p in points if p["removed"] in faster]
            for name, points in curves["measures"].items()
        }
        title = f"What is left, against how much faster the model is: batch {size[0]}, {size[1]} tokens"
        axes = {"x": "times faster", "y": "mean cosine with the whole model"}
        found.append({"title": title, "svg": plot("frontier", lines, label=title, spans=spans, **axes)})
    for what, words in (("fidelity", "Mean cosine with the whole model"), ("neighbours", "Nearest texts kept")):
        if curves["none"][what] is None:
            continue
        lines = {name: [(p["removed"], p[what]) for p in points] for name, points in curves["measures"].items()}
        title = f"{words}, against heads removed of {total}"
        svg = plot(what, lines, x="heads removed", y=words.lower(), label=title)
        found.append({"title": title, "svg": svg})
    return found


def _times_faster(
    speed: Mapping[str, Any] | None,
) -> tuple[list[int], dict[float, float], dict[float, tuple[float, float]]] | None:
    """The first size of the model that was timed, heads removed -> ratio, and ratio -> limits; None if none was."""
    rows = [] if speed is None else [row for row in speed["rows"] if row["of"] == "model"]
    if not rows:
        return None
    entries = rows[0]["entries"]
    spans = {entry["ratio"]: (entry["ratio_lower"], entry["ratio_upper"]) for entry in entries[1:]}
    return rows[0]["size"], {float(entry["name"]): entry["ratio"] for entry in entries}, spans


def tables_of(curves: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Fidelity and neighbours as tables: measures by heads removed."""
    points = {name: {p["removed"]: p for p in own} for name, own in curves["measures"].items()}
    columns = sorted({n for own in points.values() for n in own})
    found = []
    for what, title in (("fidelity", "Mean cosine with the whole model's embedding"), ("neighbours", "Nearest kept")):
        if curves["none"][what] is not None:
            rows = [(name, [_two(own[n][what]) if n in own else "" for n in columns]) for name, own in points.items()]
            found.append({"title": title, "columns": columns, "rows": rows})
    return found


def timings_of(speed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One table for layers and one for models."""
    found = []
    for of, title in (("layer", "One layer, by the heads that it has"), ("model", "The whole model, by heads removed")):
        rows = [row for row in speed["rows"] if row["of"] == of]
        if not rows:
            continue
        cells = [
            (
                f"{row['framework']} ({row['size'][0]}, {row['size'][1]})",
                [f"{1000 * row['entries'][0]['time']['median']:.3g} ms", *map(_faster, row["entries"][1:])],
            )
            for row in rows
        ]
        found.append({"title": title, "columns": [entry["name"] for entry in rows[0]["entries"]], "rows": cells})
    return found


def _faster(entry: Mapping[str, Any]) -> str:
    return (
        f"×{entry['ratio']:.2f} ({entry['ratio_lower']:.2f}-{entry['ratio_upper']:.2f}), "  # noqa: RUF001
        f"predicted {entry['predicted']:.2f}"
    )


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mha.heads.page"),
        autoescape=True,  # names come from recordings
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("heads.html.j2")
