"""The report of `mha convert`: a table, the lines below it, and a dict for JSON."""

from collections import Counter
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance.reports.text import print_lines
from mha.convert.convert import Conversion
from mha.models.standing import MEANING
from mha_core.errors import short_names

SCHEMA_VERSION = 1

COLUMNS = ("layer", "now at", "heads", "dtype", "original", "source", "target")


OTHERS = 46
"""Columns of the console that the table takes besides the names of layers; CAUSAL more with that column."""

CAUSAL = 8


def print_report(console: Console, done: Conversion, *, unseen: bool = True) -> None:
    """Print a table with a row for each layer, and lines below it. `unseen`: True to name bugs, False to count them."""
    causal = any(layer.standing.causal for layer in done.layers)
    table = Table(*COLUMNS, *(["causal"] if causal else []), box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in table.columns:
        column.no_wrap = True
    room = (max(console.width, 80) - OTHERS - CAUSAL * causal) // 2
    now = short_names([one.prefix for one in done.layers], room)
    later = short_names([one.to_prefix for one in done.layers], room)
    for layer in done.layers:
        table.add_row(
            escape(now[layer.prefix]) or "(top level)",
            escape(later[layer.to_prefix]) or "(top level)",
            str(layer.config.num_heads),
            layer.dtype,
            layer.standing.word,
            f"{layer.source.ratio:.2g}",
            f"{layer.target.ratio:.2g}",
            *(["yes" if layer.standing.causal else ""] if causal else []),
        )
    console.print(table)
    print_lines(console, *lines(done, unseen=unseen))


def lines(done: Conversion, *, unseen: bool = True) -> list[str]:
    """Return the lines below the table. `unseen`: True to name the bugs that the calls can't show; False to count."""
    words = Counter(layer.standing.word for layer in done.layers)
    found = [f"{words[word]} x {word}: {meaning}" for word, meaning in MEANING.items() if words[word]]
    reasons = Counter((layer.standing.word, layer.standing.why) for layer in done.layers)
    found += [f"{count} x {word} by: {why}" for (word, why), count in reasons.items() if word != "moved"]
    found += [f"{count} x not known: {why}" for (word, why), count in reasons.items() if word == "moved"]
    found.append(
        "source and target: worst error / allowed error of both sides on a random problem, against the float64 "
        "reference; it shows that they are the same layer, and nothing of the original"
    )
    for label, sides in (
        ("source", {(layer.source.engine, layer.source.dtype) for layer in done.layers}),
        ("target", {(layer.target.engine, layer.target.dtype) for layer in done.layers}),
    ):
        found.append(f"{label} run by {' and '.join(f'{engine} in {dtype}' for engine, dtype in sorted(sides))}")
    calls = Counter(layer.causal_call for layer in done.layers if layer.causal_call)
    found += [
        f"{count} x causal: the original keeps every query from later keys, and the converted layer does so only if "
        f"its call says so: {call}"
        for call, count in calls.items()
    ]
    notes = Counter(note for layer in done.layers for note in layer.notes)
    found += [f"{count} x {note}" for note, count in notes.items()]
    layouts = " or ".join(sorted({layer.from_layout for layer in done.layers}))
    verdict = ", ".join(word if len(words) == 1 else f"{words[word]} {word}" for word in MEANING if words[word])
    found.append(
        f"{len(done.layers)} x {layouts} to {done.to_layout}, {verdict}: {done.out} ({done.size / 1e6:.1f} MB) in "
        f"{done.seconds:.1f} s; every array reads back the same to the bit"
    )
    found.append(done.survey.line([layer.prefix for layer in done.layers]))
    if done.unseen is not None:
        found.append(done.unseen.text(whole=unseen))
    return found


def to_dict(done: Conversion) -> dict[str, Any]:
    """Return the conversion as a dict of JSON values.

    "standing" is "proved", "known" or "moved" if all layers have this standing, else "mixed"; each layer has its own.
    A layer's "causal" is null if it is unknown whether the original calls the layer causally.
    """
    words = {layer.standing.word for layer in done.layers}
    return {
        "schema": SCHEMA_VERSION,
        "source": str(done.source),
        "out": str(done.out),
        "to_layout": done.to_layout,
        "size": done.size,
        "seconds": done.seconds,
        "standing": words.pop() if len(words) == 1 else "mixed",
        "unseen": None if done.unseen is None else done.unseen.to_dict(),
        "attention_in_source": {
            "read": len(done.layers),
            "of": len(done.survey.order) + len(done.survey.unseen),
            "incomplete": [layer.prefix for layer in done.survey.incomplete],
            "unseen": list(done.survey.unseen),
        },
        "layers": [
            {
                "prefix": layer.prefix,
                "to_prefix": layer.to_prefix,
                "from_layout": layer.from_layout,
                "standing": layer.standing.word,
                "why": layer.standing.why,
                "causal": layer.standing.causal,
                "causal_call": layer.causal_call,
                "config": layer.config.to_dict(),
                "dtype": layer.dtype,
                **{
                    label: {"run_by": side.engine, "dtype": side.dtype, "ratio": side.ratio}
                    for label, side in (("source", layer.source), ("target", layer.target))
                },
                "notes": list(layer.notes),
            }
            for layer in done.layers
        ],
    }
