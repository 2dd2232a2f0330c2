"""The directive `promise`: the first numbers of one output in all backends, as measured by `docs/_data/promise.py`."""

from __future__ import annotations

import json
from typing import Any

import matplotlib as mpl

from _data import promise as measuring
from _ext.common import FRAMEWORKS, table
from _ext.figures.base import FIRST, INK, SECOND, STYLE, THIRD, figure, to_svg

MARKS = {"torch": ("o", 15, FIRST), "tf": ("s", 11, SECOND), "jax": ("D", 6, THIRD), "mxnet": ("x", 5, INK)}
"""Framework -> marker, size and colour: one inside the other, where the numbers are the same."""


def drawn(found: dict[str, Any]) -> str:
    """The numbers of all backends over each other, and how far each is from the reference."""
    made = figure(2.6)
    numbers, distances = made.subplots(1, 2, width_ratios=(3, 2))
    for name, (mark, size, color) in MARKS.items():
        row = [float(number) for number in found[name]["row"]]
        numbers.plot(row, mark, markersize=size, markerfacecolor="none", color=color, label=FRAMEWORKS[name])
    numbers.set(xlabel="number of the output", ylabel="value", xticks=range(measuring.NUMBERS))
    numbers.margins(0.15, 0.25)
    places = range(len(MARKS))
    colors = [color for *_, color in MARKS.values()]
    distances.barh(places, [found[name]["distance"] / 1e-7 for name in MARKS], color=colors)
    distances.set_yticks(places, [FRAMEWORKS[name] for name in MARKS])
    distances.set(xlabel="difference, $10^{-7}$", xlim=(0, None))
    distances.invert_yaxis()
    made.legend(*numbers.get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8, markerscale=0.6)
    caption = (
        "The first numbers of one output in four frameworks, drawn into each other; how far each is from the reference"
    )
    return f'<figure class="plot">{to_svg(made, caption)}</figure>'


def markdown() -> str:
    """The figure; and in numbers one line for each backend, and one for the reference."""
    found = json.loads((measuring.HERE / "promise.json").read_text("utf-8"))
    labels = {"reference": "reference, float64", **{name: f"{label}, float32" for name, label in FRAMEWORKS.items()}}
    rows = []
    for name, label in labels.items():
        distance = f"{found[name]['distance']:.1g}" if found[name]["distance"] else "-"
        rows.append([label, f"`{' '.join(found[name]['row'])}`", distance])
    head = ["", f"the first {measuring.NUMBERS} numbers of its output", "largest difference of all 800"]
    with mpl.rc_context(STYLE):
        shown = drawn(found)
    return f"`````{{raw}} html\n{shown}\n`````\n\n:::{{dropdown}} The same in numbers\n{table(head, rows)}\n:::"
