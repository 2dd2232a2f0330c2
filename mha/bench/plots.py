"""Plots of a results file: time and extra memory against length, with a column for each framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mha.bench.results import Results, Row
from mha.bench.settings import Setting, is_plain
from mha.bench.table import WORDS
from mha_core.files.writing import written_whole

PANEL = 3.4, 2.7
"""Width and height of one panel in inches."""

OURS_COLOUR = "#d62728"

PEER_COLOURS = ("#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#17becf")


def draw(results: Results, folder: Path) -> list[Path]:
    """One SVG for each direction, dtype and device that has at least two lengths; the files that were written."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    written = []
    # Without these the same figure would be another file each time.
    with matplotlib.rc_context({"svg.hashsalt": "mha bench", "svg.fonttype": "none"}):
        for (device, dtype, direction), rows in _groups(results).items():
            figure = _figure(plt, rows, f"(1, length, 512, 8), {WORDS[direction]}, {dtype}, {device}")
            path = folder / f"{device.replace(':', '')}-{dtype}-{direction}.svg"
            with written_whole(path) as temporary:
                figure.savefig(temporary, metadata={"Date": None}, bbox_inches="tight")
            plt.close(figure)
            written.append(path)
    return written


def _groups(results: Results) -> dict[tuple[str, str, str], list[Row]]:
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in results["rows"]:
        if is_plain(Setting.from_dict(row["setting"])):
            groups.setdefault((row["device"], row["dtype"], row["direction"]), []).append(row)
    return {key: rows for key, rows in groups.items() if len({row["setting"]["length"] for row in rows}) > 1}


def _figure(plt: Any, rows: list[Row], title: str) -> Any:
    frameworks = list(dict.fromkeys(row["framework"] for row in rows))
    width, height = PANEL
    figure, panels = plt.subplots(
        2,
        len(frameworks),
        figsize=(width * len(frameworks), 2 * height + 1.2),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    figure.suptitle(title)
    for column, framework in enumerate(frameworks):
        own = sorted((row for row in rows if row["framework"] == framework), key=lambda row: row["setting"]["length"])
        upper, lower = panels[0][column], panels[1][column]
        names = list(dict.fromkeys(entry["name"] for row in own for entry in row["contestants"] if entry["time"]))
        for number, name in enumerate(names):
            style = _style(number, name)
            upper.plot(*_points(own, name, _milliseconds), label=name, **style)
            lower.plot(*_points(own, name, _megabytes), **style)
        upper.set_title(framework)
        lower.set_xlabel("length")
        lower.legend(*upper.get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=7)
        for panel in (upper, lower):
            panel.set(xscale="log", yscale="log")
            panel.set_xticks([row["setting"]["length"] for row in own], [str(row["setting"]["length"]) for row in own])
            panel.minorticks_off()
            panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("time, ms")
    panels[1][0].set_ylabel("extra memory, MB")
    return figure


def _style(number: int, name: str) -> dict[str, Any]:
    if name.startswith("ours"):
        return {"color": OURS_COLOUR, "marker": "o", "markersize": 4, "linestyle": "-" if name == "ours" else ":"}
    return {"color": PEER_COLOURS[number % len(PEER_COLOURS)], "marker": ".", "linestyle": "--", "linewidth": 1}


Value = Callable[[Row], float | None]


def _points(rows: Iterable[Row], name: str, value: Value) -> tuple[list[int], list[float]]:
    """(lengths, values) of one contestant in each row where it has a value."""
    lengths, numbers = [], []
    for row in rows:
        for entry in row["contestants"]:
            if entry["name"] == name and (number := value(entry)) is not None:
                lengths.append(row["setting"]["length"])
                numbers.append(number)
    return lengths, numbers


def _milliseconds(entry: Row) -> float | None:
    return None if entry["time"] is None else entry["time"]["median"] * 1e3


def _megabytes(entry: Row) -> float | None:
    return None if entry["extra_memory"] is None else max(entry["extra_memory"] / 1e6, 0.1)
