"""The tables of a report of `mha heads`, as text: the terminal, the page and the documentation show the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from mha.heads.importance import MEASURES

SCHEMA_VERSION = 3

LIMITS = (
    "What is measured is what comes out of this model for these texts: no explanation of what a head is for.",
    "Heads are removed by importances that were measured once, on the whole model; nothing is trained again.",
)

Report = Mapping[str, Any]
"""What `measure_heads` returns, or what --json wrote."""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: what it shows.
        corner, columns: the words on top.
        rows: the name of each row, and its cells; a row may be shorter than others.
    """

    title: str
    corner: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


def importance_tables(report: Report) -> list[Table]:
    """For each measure, layers by heads: shares of the largest, in percent."""
    corner, names = short_names([layer["name"] for layer in report["layers"]])
    found = []
    for measure, scores in report["importance"].items():
        largest = max(map(max, scores)) or 1.0
        rows = [[f"{100 * one / largest:.0f}" for one in row] for row in scores]
        columns = [str(head) for head in range(max(map(len, rows)))]
        title = f"{measure}: {MEASURES[measure].about}"
        found.append(Table(title, corner or "layer", columns, list(zip(names, rows, strict=True))))
    return found


def short_names(names: Sequence[str]) -> tuple[str, list[str]]:
    """What names of layers share, with a star for the rest; and the rest of each.

    >>> short_names(["encoder.layer.0.attention", "encoder.layer.11.attention"]), short_names(["attention"])
    (('encoder.layer.*.attention', ['0', '11']), ('', ['attention']))
    """
    if len(names) < 2:
        return "", list(names)
    parts = [name.split(".") for name in names]
    before = commonprefix(parts)  # noqa: RUF071  # of lists
    after = commonprefix([own[len(before) :][::-1] for own in parts])[::-1]  # noqa: RUF071
    return ".".join([*before, "*", *after]), [".".join(own[len(before) : len(own) - len(after)]) for own in parts]


def curve_tables(report: Report) -> list[Table]:
    """Fidelity, and neighbours kept: measures by heads removed. None of a recording."""
    curves = report["curves"]
    if curves is None:
        return []
    titles = {
        "fidelity": f"Mean cosine with the whole model's embedding, {curves['texts']} texts that no measure saw",
        "neighbours": f"Share of the {curves['neighbours']} nearest of these texts that stay the nearest",
    }
    columns = sorted({point["removed"] for points in curves["measures"].values() for point in points})
    found = []
    for what, title in titles.items():
        if curves["none"][what] is None:
            continue
        rows = []
        for measure, points in curves["measures"].items():
            values = {point["removed"]: f"{point[what]:.2f}" for point in points}
            rows.append((measure, [values.get(count, "") for count in columns]))
        found.append(Table(title, f"removed of {total(report)}", list(map(str, columns)), rows))
    return found


def total(report: Report) -> int:
    """How many heads there are."""
    return sum(layer["heads"] for layer in report["layers"])


def ratio(entry: Mapping[str, Any]) -> str:
    """How many times faster, the limits of that, and what the arithmetic predicts."""
    limits = f"{entry['ratio_lower']:.2f}-{entry['ratio_upper']:.2f}"
    return f"×{entry['ratio']:.2f} ({limits}), predicted {entry['predicted']:.2f}"  # noqa: RUF001


def speed_table(report: Report, cell: Callable[[Mapping[str, Any]], str] = ratio) -> Table:
    """The time of the whole model by the size of the call, and a `cell` for each model with fewer heads."""
    rows, speed = [], report["speed"]["rows"]
    for row in speed:
        whole, *others = row["entries"]
        time = float(f"{1000 * whole['time']['median']:.3g}")
        rows.append((str(tuple(row["size"])), [f"{time:g} ms", *map(cell, others)]))
    return Table("Time by heads removed", "(batch, tokens)", [entry["name"] for entry in speed[0]["entries"]], rows)
