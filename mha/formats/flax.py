"""Flax's msgpack files: dicts in dicts, whose names are joined by "/", through flax.serialization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flax.serialization import msgpack_restore, msgpack_serialize
from numpy.typing import NDArray

from mha.formats.checkpoint import Add, Checkpoint, Entry, not_whole
from mha_core import AttentionConfig, SpecError


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """The arrays of the file, which is read as a whole: msgpack has no table of contents."""
    try:
        content = msgpack_restore(path.read_bytes())
    except Exception as error:  # msgpack's own errors, and NumPy's on arrays that end early
        raise not_whole(path, "Flax msgpack", error) from error
    if not isinstance(content, Mapping):
        raise not_whole(path, "Flax msgpack", f"it holds no dict but {type(content).__name__}")
    yield Checkpoint(path, dict(_flat("", content)))


@contextmanager
def create(path: Path, *, layout: str, configs: Mapping[str, AttentionConfig]) -> Iterator[Add]:
    """Write a file that flax.serialization.msgpack_restore and from_bytes read."""
    tree: dict[str, Any] = {}

    def add(name: str, array: NDArray) -> None:
        *folders, last = name.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
            if not isinstance(branch, dict):
                raise SpecError(f"{name} can't stand below an array of a part of its name")
        branch[last] = np.ascontiguousarray(array)

    yield add
    path.write_bytes(msgpack_serialize(tree, in_place=True))


def _flat(prefix: str, content: Mapping[Any, Any]) -> Iterator[tuple[str, Entry]]:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, np.ndarray):
            yield name, Entry(value.shape, value.dtype.name, partial(np.asarray, value))
        elif isinstance(value, Mapping):
            yield from _flat(f"{name}/", value)
