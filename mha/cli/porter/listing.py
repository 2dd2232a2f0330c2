"""The list of `mha convert --list`: every layer of a file with its whole name, and all that is not read."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from mha_core.layouts import get

if TYPE_CHECKING:
    from rich.console import Console

    from mha.formats.find import FoundLayer
    from mha.formats.survey import Survey

BESIDES = 64
"""Least width of the table besides its column of prefixes, in characters."""

SCHEMA_VERSION = 1


def show(console: Console, seen: Survey) -> None:
    """Print the table; it is wider than the terminal if its prefixes need that, because cut names can't be copied."""
    from rich.table import Table
    from rich.text import Text

    numbers = seen.numbers()
    prefixes = {prefix: repr(prefix) for prefix in seen.order}
    table = Table()
    table.add_column("#", no_wrap=True)
    table.add_column("prefix", no_wrap=True, min_width=max(map(len, prefixes.values()), default=0))
    for name in ("layout", "heads", "dtype", "matrices", "biases"):
        table.add_column(name, overflow="fold")
    rows = {
        layer.prefix: (" or ".join(layer.layouts), _heads(layer), ", ".join(layer.dtypes), *_arrays(layer))
        for layer in seen.layers
    }
    rows |= {layer.prefix: ("incomplete", "", "", layer.lacks(), "") for layer in seen.incomplete}
    for prefix in seen.order:
        cells = (str(numbers[prefix]), prefixes[prefix], *rows[prefix])
        table.add_row(*(Text(cell) for cell in cells))
    width = max(console.width, BESIDES + max(map(len, prefixes.values()), default=0))
    console.print(table, width=width, crop=False)
    console.print(seen.line(), markup=False, highlight=False, soft_wrap=True)


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
