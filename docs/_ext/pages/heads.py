"""The directive `heads`: a part of the committed result of `mha heads`, as a table or a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _ext.common import Computed, escaped
from mha.heads.importance import MEASURES
from mha.heads.page.page import plots_of
from mha.heads.tables import curve_tables, speed_tables

if TYPE_CHECKING:
    from sphinx.application import Sphinx

RESULT = Path(__file__).parents[2] / "_data" / "heads-minilm.json"


class Heads(Computed):
    """The part that its argument names: measures, plots, curves, kept, speed or texts."""

    required_arguments = 1

    def markdown(self) -> str:
        self.env.note_dependency(str(RESULT))
        report = json.loads(RESULT.read_text("utf-8"))
        return PARTS[self.arguments[0]](report)


def measures(report: dict[str, Any]) -> str:
    """Every measure, and what it is."""
    return table(["measure", "what it is"], [(f"`{name}`", MEASURES[name].about) for name in report["importance"]])


def plots(report: dict[str, Any]) -> str:
    """Every plot, as SVG with the colours of the site."""
    figures = [
        f'<figure class="heads-plot"><figcaption>{plot["title"]}</figcaption>\n{plot["svg"]}</figure>'
        for plot in plots_of(report)
    ]
    return "\n".join(["````{raw} html", *figures, "````"])


def curves(report: dict[str, Any]) -> str:
    """Fidelity and neighbours: measures by heads removed."""
    parts = []
    for one in curve_tables(report):
        rows = [(f"`{name}`", *cells) for name, cells in one.rows]
        parts.append(f"{one.title}:\n\n" + table(["heads removed", *one.columns], rows))
    return "\n\n".join(parts)


def kept(report: dict[str, Any]) -> str:
    """What was cut from which layer, and the proof."""
    pruned = report["pruned"]
    rows = [(f"`{name}`", str(len(heads)), ", ".join(map(str, heads))) for name, heads in pruned["kept"].items()]
    return table(["layer", "heads left", "which"], rows) + f"\n\n{escaped(pruned['verdict'])}"


def speed(report: dict[str, Any]) -> str:
    """Times of layers and of the model."""
    parts = []
    for one in speed_tables(report):
        rows = [(name, *cells) for name, cells in one.rows]
        parts.append(f"{one.title}:\n\n" + table([one.corner, *one.columns], rows))
    about = report["speed"]
    return "\n\n".join([*parts, f"{about['threads']} thread of {escaped(about['machine']['cpu'])}."])


def texts(report: dict[str, Any]) -> str:
    """Where the texts come from."""
    return escaped(f"{report['texts']}.")


WORDS = ("what it is", "which")
"""Columns of words, which stand at the left."""


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, numbers at the right."""
    lines = [names, [":--", *(":--" if name in WORDS else "--:" for name in names[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


PARTS = {
    "measures": measures,
    "plots": plots,
    "curves": curves,
    "kept": kept,
    "speed": speed,
    "texts": texts,
}


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("heads", Heads)
    return {"parallel_read_safe": True}
