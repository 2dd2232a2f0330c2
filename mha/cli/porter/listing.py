"""The list of `mha convert --list`: every layer of a file with its whole name, and all that is not read."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from mha.cli.common import say, show_rows
from mha_core.layouts import get

if TYPE_CHECKING:
    from rich.console import Console

    from mha.formats.find import FoundLayer
    from mha.formats.survey import Survey

SCHEMA_VERSION = 1


def show(console: Console, seen: Survey) -> None:
    """Print a row for each attention layer in a Survey. Prefixes of parameter names are whole, and can be copied."""
    numbers = seen.numbers()
    rows = {
        layer.prefix: (" or ".join(layer.layouts), _heads(layer), ", ".join(layer.dtypes), *_arrays(layer))
        for layer in seen.layers
    }
    rows |= {layer.prefix: ("incomplete", "", "", layer.lacks(), "") for layer in seen.incomplete}
    found = ((f"{numbers[prefix]}  {prefix!r}", *rows[prefix]) for prefix in seen.order)
    show_rows(console, ("#  prefix", "layout", "heads", "dtype", "matrices", "biases"), found)
    say(console, seen.line())


def _heads(layer: FoundLayer) -> str:
    heads = "?" if layer.num_heads is None else str(layer.num_heads)
    return heads if layer.num_kv_heads in (None, layer.num_heads) else f"{heads} ({layer.num_kv_heads} for keys)"


def _arrays(layer: FoundLayer) -> tuple[str, str]:
    """(matrices with their shapes, biases) of a layer; several matrices in a row of one shape are counted."""
    layout = get(layer.layouts[0])
    parts = []
    for shape, group in groupby(layout.required, key=layer.shapes.__getitem__):
        names = list(group)
        parts.append(f"{names[0] if len(names) == 1 else f'{len(names)} of'} {'x'.join(map(str, shape))}")
    there = [name for name in layout.optional if name in layer.shapes]
    biases = "all" if len(there) == len(layout.optional) else ", ".join(there) or "none"
    return ", ".join(parts), biases
