"""Flax's msgpack files: nested dicts, whose keys are joined by "/"; the package msgpack reads and writes them.

Flax keeps an array as a msgpack extension of type 1, whose content is msgpack too: shape, name of the dtype, bytes. An
array of more than a gigabyte is a dict of parts.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from mha.formats.checkpoint import Add, Checkpoint, Entry, bfloat16, collect, reading
from mha_core import AttentionConfig, SpecError
from mha_core.errors import shown

ARRAY = 1
"""Flax's number of the extension; 2 is a complex number, 3 a NumPy scalar."""

KNOWN_EXTENSIONS = (1, 2, 3)

KINDS = frozenset(
    (
        *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "bool"),
        *("uint64", "uint32", "uint16", "uint8", "complex64", "complex128"),
    )
)
"""The dtypes of arrays that can be read; arrays of other dtypes are only listed."""

PARTS = "__msgpack_chunked_array__"

DEEPEST = 64
"""Most dicts that may be nested."""

LONGEST_LIST = 1024
"""Flax makes dicts of lists, so a long one is no part of its files."""


class _Broken(ValueError):
    """The file is no msgpack as Flax writes it."""


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """Open the file as a Checkpoint. The whole file is read at once, since msgpack has no table of contents."""
    others: dict[str, str] = {}
    with reading(path, "Flax msgpack"):
        content = _unpacked(path.read_bytes())
        if not isinstance(content, dict):
            raise _Broken(f"it holds no dict but {type(content).__name__}")
        found = list(_flat(content, others))
    yield Checkpoint(path, collect(path, found), others=others)


@contextmanager
def create(path: Path, *, layout: str, configs: Mapping[str, AttentionConfig]) -> Iterator[Add]:
    """Return a context that writes a file for flax.serialization.msgpack_restore and from_bytes."""
    from flax.serialization import msgpack_serialize

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


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(
        data,
        raw=False,
        ext_hook=_extension,
        object_pairs_hook=_once,
        max_array_len=LONGEST_LIST,
        max_ext_len=len(data),
    )


def _once(pairs: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(name, str):
            raise _Broken(f"a name must be a text. Got {type(name).__name__}.")
        if name in found:
            raise _Broken(f"the name {shown(repr(name))} stands there twice")
        found[name] = value
    return found


def _extension(code: int, data: bytes) -> Any:
    if code not in KNOWN_EXTENSIONS:
        raise _Broken(f"it holds an extension of type {code}, which Flax does not write")
    if code != ARRAY:
        return None
    made = msgpack.unpackb(data, raw=True, max_array_len=LONGEST_LIST)
    if not isinstance(made, list | tuple) or len(made) != 3:
        raise _Broken("an array must be a shape, a dtype and bytes")
    shape, name, numbers = made
    if not isinstance(shape, list | tuple) or not all(type(axis) is int and axis >= 0 for axis in shape):
        raise _Broken("the shape of an array must be a list of counts")
    if not isinstance(name, bytes) or not isinstance(numbers, bytes):
        raise _Broken("an array must be a shape, a dtype and bytes")
    dtype = name.decode()
    if dtype in KINDS:
        itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
        if prod(shape) * itemsize != len(numbers):
            raise _Broken(f"an array of {dtype} {tuple(shape)} must have as many bytes. Got {len(numbers)}.")
    return Entry(tuple(shape), dtype, partial(_load, tuple(shape), dtype, numbers))


def _load(shape: tuple[int, ...], dtype: str, numbers: bytes) -> NDArray:
    return np.frombuffer(numbers, bfloat16() if dtype == "bfloat16" else np.dtype(dtype)).reshape(shape)


def _flat(content: dict[str, Any], others: dict[str, str]) -> Iterator[tuple[str, Entry]]:
    waiting = [("", content, 0)]
    while waiting:
        prefix, branch, depth = waiting.pop()
        if depth > DEEPEST:
            raise _Broken(f"its dicts stand in one another deeper than {DEEPEST}")
        inner = []
        for key, value in branch.items():
            name = f"{prefix}{key}"
            if isinstance(value, dict) and PARTS in value:
                yield name, _of_parts(name, value)
            elif isinstance(value, dict):
                inner.append((f"{name}/", value, depth + 1))
            elif isinstance(value, Entry):
                yield name, value
            else:
                others[name] = type(value).__name__
        waiting += reversed(inner)


def _of_parts(name: str, value: dict[str, Any]) -> Entry:
    shape, parts = (_listed(value.get(key)) for key in ("shape", "chunks"))
    counts = all(type(axis) is int and axis >= 0 for axis in shape)
    if not counts or not parts or not all(isinstance(part, Entry) for part in parts):
        raise _Broken(f"{shown(name)} must be an array in parts")
    if len({part.dtype for part in parts}) > 1 or sum(prod(part.shape) for part in parts) != prod(shape):
        raise _Broken(f"the parts of {shown(name)} do not make an array of shape {tuple(shape)}")
    return Entry(tuple(shape), parts[0].dtype, lambda: np.concatenate([part.load() for part in parts]).reshape(shape))


def _listed(value: Any) -> list[Any]:
    """The list that Flax has written as a dict {"0": ..., "1": ...}."""
    if not isinstance(value, dict) or list(value) != [str(index) for index in range(len(value))]:
        raise _Broken("a list must be a dict whose names count from 0")
    return list(value.values())
