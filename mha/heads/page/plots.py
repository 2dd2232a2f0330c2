"""Plots of a report of `mha heads` as SVG: text as text, colours as the page's, so that they follow light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

COLOURS = 6
"""Colours of lines that the page's style has: --c0, --c1, ..."""

INK, RULE = "#0a0b7f", "#0a0b7e"
"""Stand for the colours of text and of the grid while matplotlib draws."""

MARKERS = "os^Dv*"
"""Lines differ by these as well as by colour."""

SIZE = 4.8, 3.3

Line = Sequence[tuple[float, float]]
"""Points (x, y)."""


def plot(
    name: str,
    lines: Mapping[str, Line],
    *,
    x: str,
    y: str,
    label: str,
    spans: Mapping[float, tuple[float, float]] = MappingProxyType({}),
) -> str:
    """One plot as an <svg> element.

    Args:
        name: unique on the page.
        lines: what each line is -> its points.
        x, y: words on the axes.
        label: the plot in words, for those who don't see it.
        spans: x of a point -> the lowest and highest that it may be, drawn at the points of the first line.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    settings: Any = {
        "svg.hashsalt": name,  # without it the same plot would be another text each time
        "svg.fonttype": "none",
        "font.size": 9,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
        "grid.color": RULE,
    }
    with matplotlib.rc_context(settings):
        figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
        for number, (what, points) in enumerate(lines.items()):
            colour, marker = f"#0a0b{number % COLOURS:02x}", MARKERS[number % len(MARKERS)]
            axes.plot(
                *zip(*points, strict=True), color=colour, marker=marker, markersize=4.5, linewidth=1.4, label=what
            )
        for place, height in next(iter(lines.values()), ()):
            if place in spans:
                axes.hlines(height, *spans[place], color=INK, linewidth=0.8)
        axes.set(xlabel=x, ylabel=y)
        axes.grid(linewidth=0.6)
        axes.legend(fontsize=8, frameon=False, loc="lower left")  # lines fall from left to right
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    return _adapted(name, file.getvalue(), label)


def _adapted(name: str, text: str, label: str) -> str:
    """The element alone, with the page's colours, names of its own, and words for those who don't see it."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    for number in range(COLOURS):
        text = text.replace(f"#0a0b{number:02x}", f"var(--c{number})")
    text = text.replace(INK, "currentColor").replace(RULE, "var(--line)")
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
