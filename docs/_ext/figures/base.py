"""What all figures share: SVG whose text is text, in the colour of the page, each with its numbers in a table."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray]
"""What a lesson hands out in NumPy, as CALL/NAME."""

INK = "#012345"
"""Stands for the colour of the page's text until the SVG is written."""

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lessons",
    "font.family": "sans-serif",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}

FIRST, SECOND, THIRD, GREY = "#2a7fbf", "#d9541e", "#3f9142", "#808080"

WIDTH = 5.4
"""Inches: on a narrow screen text is still as large as the page's small print."""


def figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure."""
    return Figure(figsize=(width, height), layout="constrained")


def shaded(axes: Axes, weights: NDArray, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> None:
    """A matrix of weights between 0 and 1 as cells; the colour is the square root of the weight, so small ones show.

    Args:
        axes: where to draw.
        weights: (Lq, Lk).
        rows, columns: labels of queries and keys; none: numbers.
    """
    color = [int(FIRST[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    image = np.zeros((*weights.shape, 4))
    image[..., :3], image[..., 3] = color, np.sqrt(np.clip(np.nan_to_num(weights), 0, 1))
    axes.imshow(image, interpolation="none", aspect="equal")
    axes.spines[["top", "right"]].set_visible(True)
    high, wide = weights.shape
    axes.set_xticks(range(wide), columns or [*map(str, range(wide))], rotation=90 if columns else 0)
    axes.set_yticks(range(high), rows or [*map(str, range(high))])
    axes.tick_params(length=0, labelsize=8)


def box(axes: Axes, at: tuple[float, float], size: tuple[float, float], text: str, color: str = INK) -> None:
    """A box of a diagram; `at` is its middle."""
    (x, y), (width, height) = at, size
    corner = (x - width / 2, y - height / 2)
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, facecolor="none", edgecolor=color))
    axes.text(x, y, text, ha="center", va="center", fontsize=8)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str = INK) -> None:
    """An arrow of a diagram."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": color, "shrinkA": 0, "shrinkB": 0})


def diagram(height: float) -> tuple[Figure, Axes]:
    """A figure for boxes and arrows, whose coordinates are 0 to 10 and 0 to `height`."""
    made = figure(5)
    axes = made.add_subplot()
    sheet(axes, 10, height)
    return made, axes


def sheet(axes: Axes, width: float, height: float) -> None:
    """Make axes a sheet for boxes and arrows."""
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()


def to_svg(made: Figure, caption: str) -> str:
    """The figure as an SVG element of any size, which says what it shows."""
    text = io.StringIO()
    made.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = text.getvalue()
    drawn = re.sub(r' width="[^"]*pt"| height="[^"]*pt"', "", drawn[drawn.index("<svg") :]).replace(INK, "currentColor")
    return drawn.replace("<svg", f'<svg role="img" lang="en" aria-label="{escape(caption)}"', 1)


LICENCE = "mha-parity, Apache-2.0"
"""A line in the file of a figure that is downloaded."""


def to_html(made: Figure, caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The figure with its caption and a place for a link to its file, and its numbers in a table behind it."""
    lines = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return (
        f'<figure class="plot">{to_svg(made, caption)}<figcaption>{escape(caption)}{DOWNLOAD}</figcaption></figure>\n'
        f'<details lang="en"><summary>The same in numbers</summary>'
        f'<div class="table-wrapper"><table class="docutils"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></details>\n"
    ).replace("\n\n", "\n")


DOWNLOAD = "<!-- download -->"
"""A mark that the link to a figure's file replaces."""


def with_download(html: str, name: str) -> str:
    """A figure's HTML with a link to its file."""
    link = f' <a class="download" href="_downloads/{name}.svg" download>SVG</a> ({LICENCE})'
    return html.replace(DOWNLOAD, link, 1)


def svg_in(html: str) -> str:
    """The SVG of a figure's HTML, which stands alone: in black."""
    return html[html.index("<svg") : html.index("</svg>")] + "</svg>"


def to_file(html: str) -> str:
    """The SVG of a figure's HTML as a file, with its licence."""
    svg = svg_in(html)
    head = svg.index(">") + 1
    about = f"<metadata>{LICENCE}</metadata>"
    return f"{svg[:head]}{about}{svg[head:]}".replace("currentColor", "black") + "\n"
