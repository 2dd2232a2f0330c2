"""Stacked layers: `flax.linen.scan` and `nnx.vmap` put all layers' parameters into one array, along its first axis."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from numpy.typing import NDArray

from mha.formats import open_checkpoint
from mha.formats.checkpoint import Checkpoint, Entry
from mha.formats.find import find_layers

MOST = 1000
"""Layers that a stack may have."""

LAYERS = r"(^|[./_])(layers?|blocks?|h|stack(ed)?)[./]$"
"""A pattern of how the name of a stack mostly ends."""


@contextmanager
def open_layers(path: str | Path) -> Iterator[Checkpoint]:
    """Open a file of weights as `open_checkpoint` does, with stacked layers split into single ones: see `unstacked`."""
    with open_checkpoint(path) as checkpoint:
        yield unstacked(checkpoint)


def unstacked(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with stacked layers split, so that each layer has its own names.

    In a stack, the first axis of every array counts the layers. Layer 1 of "layers/attn/query/kernel" gets the name
    "layers/1/attn/query/kernel". The checkpoint is unchanged if some of its layers are not stacked.

    >>> import numpy as np
    >>> shapes = {f"{name}/kernel": (3, 6, 4, 5) for name in ("query", "key", "value")} | {"out/kernel": (3, 4, 5, 6)}
    >>> entries = {
    ...     f"h/attn/{name}": Entry(shape, "float32", lambda shape=shape: np.zeros(shape, np.float32))
    ...     for name, shape in shapes.items()
    ... }
    >>> found = unstacked(Checkpoint(Path("model.msgpack"), entries))
    >>> [layer.prefix for layer in find_layers(found)]
    ['h/0/attn', 'h/1/attn', 'h/2/attn']
    """
    if find_layers(checkpoint):
        return checkpoint
    for prefix, many in _stacks(checkpoint.entries):
        entries = dict(_apart(checkpoint.entries, prefix, many))
        found = replace(checkpoint, entries=entries)
        if len(entries) > len(checkpoint.entries) and find_layers(found):
            return found
    return checkpoint


def _stacks(entries: Mapping[str, Entry]) -> Iterator[tuple[str, int]]:
    """Yield the names below which all arrays have one first axis, and its size: layers first, then the outermost."""
    below: dict[str, list[Entry]] = defaultdict(list)
    for name, entry in entries.items():
        below[""].append(entry)
        for end in re.finditer(r"[./]", name):
            below[name[: end.end()]].append(entry)
    for prefix in sorted(below, key=lambda one: (not re.search(LAYERS, one), not one, len(one))):
        shapes = [entry.shape for entry in below[prefix]]
        sizes = {shape[0] if shape else 0 for shape in shapes}
        many = next(iter(sizes))
        if len(sizes) == 1 and 0 < many <= MOST and min(map(len, shapes)) > 1 and max(map(len, shapes)) > 2:
            yield prefix, many


def _apart(entries: Mapping[str, Entry], prefix: str, many: int) -> Iterator[tuple[str, Entry]]:
    """Yield all arrays, with each layer of one stack by itself."""
    end = prefix[-1:] or next((one for one in "/." if any(one in name for name in entries)), ".")
    for name, entry in entries.items():
        if not name.startswith(prefix):
            yield name, entry
            continue
        whole = cache(entry.load)
        for layer in range(many):
            part = Entry(entry.shape[1:], entry.dtype, partial(_part, whole, layer))
            yield f"{prefix}{layer}{end}{name.removeprefix(prefix)}", part


def _part(whole: Callable[[], NDArray], layer: int) -> NDArray:
    return whole()[layer]
