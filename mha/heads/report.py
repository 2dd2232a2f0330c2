"""The result of `mha heads`: as text, and as a dict for JSON (`schema.json` says its form)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mha.heads.curve import NEIGHBOURS, Curves, Point
from mha.heads.importance import MEASURES
from mha.heads.proof import BackendProof, LiveProof

SCHEMA_VERSION = 2

LIMITS = (
    "What is measured is what comes out of this model for these texts: no explanation of what a head is for.",
    "Heads are removed by importances that were measured once, on the whole model; nothing is trained again.",
)


@dataclass(frozen=True)
class Pruned:
    """Heads that were cut.

    Attributes:
        measure: by whose order.
        kept: layer -> its heads that are left.
        removed: how many are gone.
        proofs: each backend, cut against masked.
        live: the live model, cut against masked; None of a recording.
        left_out: a line for each backend that is not installed.
        point: what is left of the model; None where nothing was judged.
        file: where the cut weights were written; "" if nowhere.
    """

    measure: str
    kept: Mapping[str, Sequence[int]]
    removed: int
    proofs: tuple[BackendProof, ...]
    live: LiveProof | None = None
    left_out: tuple[str, ...] = ()
    point: Point | None = None
    file: str = ""

    @property
    def equal(self) -> bool:
        """Whether every backend that ran gave the same, and the live model too."""
        ran = [proof for proof in self.proofs if not proof.failed]
        return bool(ran) and all(proof.equal for proof in ran) and (self.live is None or self.live.equal)

    def to_dict(self) -> dict[str, Any]:
        return {
            "measure": self.measure,
            "removed": self.removed,
            "kept": {name: list(heads) for name, heads in self.kept.items()},
            "proofs": [proof.to_dict() for proof in self.proofs],
            "live": None if self.live is None else self.live.to_dict(),
            "not_installed": list(self.left_out),
            "point": None if self.point is None else self.point.to_dict(),
            "equal": self.equal,
            "verdict": verdict(self),
        }


@dataclass(frozen=True, eq=False)
class HeadsReport:
    """Everything that `mha heads` found.

    Attributes:
        name: the model or recording.
        recording: whether it is a recording.
        layers: name -> number of heads.
        texts: where the texts come from, in words; "" of a recording.
        importance: measure -> (layers, heads); NaN where there is no such head.
        curves: None of a recording.
        pruned: None if nothing was cut.
        speed: rows of `mha.heads.speed`; None if it was not measured.
        cpu_seconds: processor time of this process.
        versions: package -> version.
    """

    name: str
    recording: bool
    layers: Mapping[str, int]
    texts: str
    importance: Mapping[str, NDArray[np.float64]]
    curves: Curves | None = None
    pruned: Pruned | None = None
    speed: Mapping[str, Any] | None = None
    cpu_seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The whole report as a dict of JSON values."""
        counts = list(self.layers.values())
        return {
            "schema": SCHEMA_VERSION,
            "model": self.name,
            "recording": self.recording,
            "texts": self.texts,
            "layers": [{"name": name, "heads": count} for name, count in self.layers.items()],
            "importance": {
                name: [[float(one) for one in row[:count]] for row, count in zip(scores, counts, strict=True)]
                for name, scores in self.importance.items()
            },
            "curves": None if self.curves is None else self.curves.to_dict(),
            "pruned": None if self.pruned is None else self.pruned.to_dict(),
            "speed": self.speed,
            "cpu_seconds": self.cpu_seconds,
            "versions": dict(self.versions),
        }


def print_report(console: Console, report: HeadsReport) -> None:
    """Print the whole report."""

    def line(text: str = "") -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    total = sum(report.layers.values())
    line(f"{report.name}: {total} heads in {len(report.layers)} layers")
    if report.texts:
        line(f"Texts: {report.texts}.")
    first = next(iter(report.importance))
    scores = report.importance[first]
    console.print(
        f"\nImportance by {first}: {MEASURES[first].about}; of the largest, in %", style="bold", soft_wrap=True
    )
    console.print(importance_table(report.layers, scores))
    if report.curves is not None:
        line()
        print_curves(console, report.curves, total)
    if report.pruned is not None:
        line()
        for text in pruned_lines(report.pruned, total):
            line(text)
    if report.speed is not None:
        line()
        print_speed(console, report.speed)
    line()
    for text in LIMITS:
        line(text)
    line(f"{report.cpu_seconds:.0f} s of processor time.")


def importance_table(layers: Mapping[str, int], scores: NDArray[np.float64]) -> Table:
    """One row per layer, one column per head: the share of the largest, in percent."""
    largest = float(np.nanmax(scores)) or 1.0
    shared, names = short_names(list(layers))
    table = _table(shared, *(str(head) for head in range(scores.shape[1])))
    for name, row in zip(names, scores, strict=True):
        table.add_row(name, *("" if np.isnan(one) else f"{100 * one / largest:.0f}" for one in row))
    return table


def short_names(names: Sequence[str]) -> tuple[str, list[str]]:
    """What names of layers share, with a star for the rest; and the rest of each.

    >>> short_names(["encoder.layer.0.attention", "encoder.layer.11.attention"]), short_names(["attention"])
    (('encoder.layer.*.attention', ['0', '11']), ('', ['attention']))
    """
    if len(names) < 2:
        return "", list(names)
    parts = [name.split(".") for name in names]
    start = _alike(parts)
    end = _alike([own[start:][::-1] for own in parts])
    before, after = parts[0][:start], parts[0][len(parts[0]) - end :]
    return ".".join([*before, "*", *after]), [".".join(own[start : len(own) - end]) for own in parts]


def _alike(parts: Sequence[Sequence[str]]) -> int:
    """How many first parts all of these share."""
    return next((n for n, own in enumerate(zip(*parts, strict=False)) if len(set(own)) > 1), min(map(len, parts)))


def print_curves(console: Console, curves: Curves, total: int) -> None:
    """Print a table of fidelity and one of neighbours kept, measures by heads removed."""

    def line(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    columns = sorted({point.removed for points in curves.of.values() for point in [*points, curves.none]})
    wanted = {
        "fidelity": f"Mean cosine with the whole model's embedding, {curves.texts} texts that no measure saw",
        "neighbours": f"Share of the {NEIGHBOURS} nearest of these texts that stay the nearest",
    }
    for what, title in wanted.items():
        if getattr(curves.none, what) is None:
            continue
        line(title, "bold")
        table = _table(f"removed of {total}", *map(str, columns))
        for name, points in curves.of.items():
            by_count = {point.removed: getattr(point, what) for point in points}
            table.add_row(name, *(f"{by_count[count]:.2f}" if count in by_count else "" for count in columns))
        console.print(table)
        line("")


def point_text(point: Point | None) -> str:
    """Fidelity, and neighbours kept after a stroke.

    >>> point_text(Point(24, 0.914, 0.74)), point_text(None)
    ('0.91 / 0.74', '')
    """
    if point is None:
        return ""
    return f"{point.fidelity:.2f}" + ("" if point.neighbours is None else f" / {point.neighbours:.2f}")


def pruned_lines(pruned: Pruned, total: int) -> list[str]:
    """What was cut, and the proof."""
    lines = [f"Cut {pruned.removed} of {total} heads, in the order of {pruned.measure}. Left in each layer:"]
    lines += [f"  {name}: {len(heads)} ({', '.join(map(str, heads))})" for name, heads in pruned.kept.items()]
    if pruned.point is not None:
        lines.append(f"Fidelity / nearest texts kept, on texts that no measure saw: {point_text(pruned.point)}")
    lines.append("Cut = masked, worst error / allowed error of all layers:")
    for proof in pruned.proofs:
        words = f"did not run: {proof.failed}" if proof.failed else f"{proof.worst:.2g}, {proof.difference:.1e} apart"
        lines.append(f"  {proof.backend}: {words}")
    if pruned.live is not None:
        apart = "the same bits" if pruned.live.identical else f"{pruned.live.difference:.1e} apart"
        lines.append(f"  live model, embeddings: {apart}; allowed {pruned.live.allowed:.1e}")
    lines.append(verdict(pruned))
    if pruned.file:
        lines.append(f"Written: {pruned.file}")
    return lines


def print_speed(console: Console, speed: Mapping[str, Any]) -> None:
    """Print one row for each layer and model and size: how many times faster, and what arithmetic predicts."""
    title = f"Times faster with fewer heads ({speed['threads']} thread); in brackets what the arithmetic predicts"
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    for of, left in (("layer", "heads"), ("model", "removed")):
        rows = [row for row in speed["rows"] if row["of"] == of]
        if not rows:
            continue
        table = _table(f"{of}, {left}", *(entry["name"] for entry in rows[0]["entries"]))
        for row in rows:
            first, *others = row["entries"]
            cells = [f"{entry['ratio']:.2f} [{entry['predicted']:.2f}]" for entry in others]
            name = f"{row['framework']} ({row['size'][0]}, {row['size'][1]})"
            table.add_row(name, f"{1000 * first['time']['median']:.0f} ms", *(escape(cell) for cell in cells))
        console.print(table)
    for problem in speed["problems"]:
        console.print(problem, markup=False, highlight=False, soft_wrap=True)


def verdict(pruned: Pruned) -> str:
    """One line: where it was proved, where not, and what is not installed.

    >>> verdict(Pruned("gradient", {"layer": [0]}, 1, (BackendProof("torch", 0.1, 0.0),)))
    'Equal: proved in torch.'
    """
    proved = [proof.backend for proof in pruned.proofs if proof.equal]
    differ = [proof.backend for proof in pruned.proofs if not proof.equal and not proof.failed]
    failed = [proof.backend for proof in pruned.proofs if proof.failed]
    if pruned.live is not None:
        (proved if pruned.live.equal else differ).append("the live model")
    words = f"proved in {', '.join(proved)}" if proved else "proved nowhere"
    words += f"; different in {', '.join(differ)}" if differ else ""
    words += f"; {', '.join(failed)} did not run" if failed else ""
    words += f"; {', '.join(pruned.left_out)} not installed" if pruned.left_out else ""
    return f"{'Equal' if pruned.equal else 'Different' if differ else 'Not shown'}: {words}."


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="underline")
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table
