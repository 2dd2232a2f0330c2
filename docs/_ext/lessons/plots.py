"""The plots of the lessons: SVG whose text is text, in the colour of the page, each with its numbers in a table."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

INK = "#012345"
"""Stands for the colour of the page's text until the SVG is written."""

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lessons",
    "font.family": "sans-serif",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
}

FIRST, SECOND = "#2a7fbf", "#d9541e"


def angle(arrays: Mapping[str, NDArray]) -> str:
    """The weight of each of ten vectors by its direction, of equal length and with one of them five times as long."""
    degrees = 36 * np.arange(10)
    equal, longer = arrays["circle/weights"][0], arrays["long/weights"][0]
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(degrees, equal, "o-", color=FIRST, label="all of length 1")
    axes.plot(degrees, longer, "s--", color=SECOND, label="the one at 108 degrees five times as long")
    axes.axvline(45, color=INK, linewidth=0.8, linestyle=":")
    axes.annotate("query", (47, max(longer) * 0.95))
    axes.set(xlabel="direction of the key, degrees", ylabel="weight", xticks=degrees, ylim=(0, None))
    axes.legend(frameon=False)
    rows = [[f"{d}", f"{a:.3f}", f"{b:.3f}"] for d, a, b in zip(degrees, equal, longer, strict=True)]
    return _html(
        figure,
        "Weights by angle: the closer a key's direction is to the query's 45 degrees, the larger its weight; "
        "a key five times as long takes nearly half.",
        ("direction", "weight", "one five times as long"),
        rows,
    )


def scaling(arrays: Mapping[str, NDArray]) -> str:
    """Weights over scores of 10 queries and 10 keys: 1 and 100 dimensions, without the scale and with it."""
    one, hundred = arrays["one/scores"], arrays["hundred/scores"]
    panels = {
        "1 dimension, not scaled": (one, arrays["one/weights"]),
        "1 dimension, divided by 1": (one, arrays["one/weights"]),
        "100 dimensions, not scaled": (hundred, arrays["hundred/weights"]),
        "100 dimensions, divided by 10": (hundred / 10, arrays["scaled/weights"]),
    }
    figure = Figure(figsize=(7, 5), layout="constrained")
    rows = []
    for number, (title, (scores, weights)) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(2, 2, number)
        axes.scatter(scores.ravel(), weights.ravel(), s=12, color=SECOND if number == 3 else FIRST)
        axes.set(xlabel="score", ylabel="weight", ylim=(-0.05, 1.05))
        axes.set_title(title, fontsize=10)
        rows.append([title, f"{scores.std():.2f}", f"{weights.max(axis=-1).mean():.3f}"])
    return _html(
        figure,
        "Weights over scores: with 100 dimensions and no scale, weights are near 0 or 1; scaled, they are as with 1.",
        ("", "deviation of the scores", "largest weight of a query, on average"),
        rows,
    )


PLOTS = {"angle": angle, "scaling": scaling}


def plot(lesson: str, arrays: Mapping[str, NDArray]) -> str:
    """HTML of a lesson's plot and table; `arrays` is what the lesson hands out in NumPy, as CALL/NAME."""
    with mpl.rc_context(STYLE):
        return PLOTS[lesson](arrays)


def _html(figure: Figure, caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = text.getvalue()
    drawn = re.sub(r' width="[^"]*pt"| height="[^"]*pt"', "", drawn[drawn.index("<svg") :]).replace(INK, "currentColor")
    drawn = drawn.replace("<svg", f'<svg role="img" aria-label="{caption}"', 1)
    lines = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    return (
        f'<figure class="plot">{drawn}<figcaption>{caption}</figcaption></figure>\n'
        f"<details><summary>The same in numbers</summary>"
        f'<div class="table-wrapper"><table class="docutils"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></details>\n"
    ).replace("\n\n", "\n")
