"""The directive `heads`: a part of the committed result of `mha heads`, as a table or a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _ext.common import escaped, table
from mha.heads.importance import MEASURES
from mha.heads.page.page import plots_of
from mha.heads.tables import curve_tables, speed_table

RESULT = Path(__file__).parents[2] / "_data" / "heads-minilm.json"


def measures(report: dict[str, Any]) -> str:
    """Every measure, and what it is."""
    return of_heads(["measure", "what it is"], [(f"`{name}`", MEASURES[name].about) for name in report["importance"]])


def plots(report: dict[str, Any]) -> str:
    """Every plot, as SVG with the colours of the site."""
    return _drawn(plots_of(report))


def left(report: dict[str, Any]) -> str:
    """For whoever meets one plot only: what is left with fewer heads, and which of them stayed."""
    pruned = report["pruned"]
    drawn = [plot for plot in plots_of(report) if plot["title"].startswith("Mean cosine")]
    return (
        f"{_drawn(drawn)}\n\nWith {pruned['removed']} heads gone by `{pruned['measure']}`, it is "
        f"{pruned['point']['fidelity']:.2f}. Of each layer, from the first to the last, this many heads stayed: "
        f"{', '.join(str(len(heads)) for heads in pruned['kept'].values())}."
    )


def _drawn(found: Sequence[dict[str, str]]) -> str:
    figures = [
        f'<figure class="heads-plot"><figcaption>{plot["title"]}</figcaption>\n{plot["svg"]}</figure>' for plot in found
    ]
    return "\n".join(["````{raw} html", *figures, "````"])


def curves(report: dict[str, Any]) -> str:
    """Fidelity and neighbours: measures by heads removed."""
    parts = []
    for one in curve_tables(report):
        rows = [(f"`{name}`", *cells) for name, cells in one.rows]
        parts.append(f"{one.title}:\n\n" + of_heads(["heads removed", *one.columns], rows))
    return "\n\n".join(parts)


def kept(report: dict[str, Any]) -> str:
    """What was cut from which layer, and the proof."""
    pruned = report["pruned"]
    rows = [(f"`{name}`", str(len(heads)), ", ".join(map(str, heads))) for name, heads in pruned["kept"].items()]
    return of_heads(["layer", "heads left", "which"], rows) + f"\n\n{escaped(pruned['verdict'])}"


def speed(report: dict[str, Any]) -> str:
    """Times of the model."""
    one, about = speed_table(report), report["speed"]
    rows = [(name, *cells) for name, cells in one.rows]
    found = f"{one.title}:\n\n" + of_heads([one.corner, *one.columns], rows)
    return f"{found}\n\n{about['threads']} thread of {escaped(about['machine']['cpu'])}."


def texts(report: dict[str, Any]) -> str:
    """Where the texts come from."""
    return escaped(f"{report['texts']}.")


def of_heads(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns hold numbers, but for the first and those of words."""
    return table(names, rows, numbers=[name for name in names[1:] if name not in ("what it is", "which")])


def answer(report: dict[str, Any]) -> str:
    """What comes out when heads are cut, in a sentence."""
    gone, point = report["pruned"]["removed"], report["pruned"]["point"]
    total = sum(layer["heads"] for layer in report["layers"])
    times = [
        entry["ratio"] for row in report["speed"]["rows"] for entry in row["entries"] if entry["name"] == str(gone)
    ]
    low, high = (f"\N{MULTIPLICATION SIGN}{ratio:.2f}" for ratio in (min(times), max(times)))
    return (
        f"**Without the {gone} least important of {total} heads** MiniLM's embeddings keep {point['fidelity']:.2f} "
        f"of their direction (mean cosine), {point['neighbours']:.0%} of the nearest texts stay the nearest, and the "
        f"model is {low} to {high} as fast."
    )


PARTS = {
    "answer": answer,
    "measures": measures,
    "plots": plots,
    "left": left,
    "curves": curves,
    "kept": kept,
    "speed": speed,
    "texts": texts,
}


def markdown(part: str) -> str:
    """The part of this name: answer, measures, plots, left, curves, kept, speed or texts."""
    return PARTS[part](json.loads(RESULT.read_text("utf-8")))
