"""PyTorch's own files, zipped ones and those before version 1.6, without PyTorch: nothing in them is run.

A zipped file has the pickle as NAME/data.pkl and each storage as NAME/data/KEY; their checksums are compared when
they are read. An old one is a row of pickles (a magic number, a version, sizes, the state_dict, the keys of the
storages) and then the storages, each with its length before it.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from mha.formats.checkpoint import Add, Checkpoint, Entry, bfloat16, collect, not_whole
from mha.formats.readers.state_dict import CodeFound, Other, Tensor, unpickle
from mha.formats.readers.zips import NotWhole, open_zip, read_member
from mha_core import AttentionConfig, SpecError
from mha_core.errors import shown

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
"""The first number in an old file."""

OLD_VERSION = 1001

DEEPEST = 64
"""Most dicts that may be nested."""


@dataclass
class Content:
    """The contents of a file: the object in the pickle, and the storages of its tensors.

    Attributes:
        tree: nested dicts, with tensors as `mha.formats.readers.state_dict` describes them.
        length: bytes of the pickle, which can't name more items than that.
        read: a function from a storage's key to its bytes.
        little_endian: the order of the bytes of a number.
    """

    tree: Any
    length: int
    read: Callable[[str], bytes]
    little_endian: bool = True
    _last: tuple[str, bytes] = field(default=("", b""))

    def storage(self, key: str) -> bytes:
        """The bytes of a storage; the last one is cached, because tensors that share one follow each other."""
        if self._last[0] != key or not key:
            self._last = (key, self.read(key))
        return self._last[1]


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """Open the file: the tensors of a state_dict, or of nested dicts, whose names are then joined by dots."""
    with ExitStack() as stack:
        try:
            with path.open("rb") as file:
                is_zip = file.read(4) == b"PK\x03\x04"
            content = _zipped(stack.enter_context(open_zip(path))) if is_zip else _old(path)
        except SpecError:
            raise
        except CodeFound as error:
            raise SpecError(
                f"{path} holds {shown(error.name)}, which is no tensor: reading it would run code from the file, and "
                "is refused. Save the model's state_dict() instead."
            ) from error
        except Exception as error:  # the pickle module raises anything, by where a file is damaged
            raise not_whole(path, "PyTorch", error) from error
        if not isinstance(content.tree, Mapping):
            raise SpecError(f"{path} must hold a state_dict. Got {_kind(content.tree)}.")
        try:
            leaves = _leaves(content)
        except NotWhole as error:
            raise not_whole(path, "PyTorch", error) from error
        tensors = ((name, leaf) for name, leaf in leaves.items() if isinstance(leaf, Tensor))
        entries = collect(path, ((name, _entry(content, tensor)) for name, tensor in tensors))
        others = {name: _kind(leaf) for name, leaf in leaves.items() if not isinstance(leaf, Tensor)}
        yield Checkpoint(path, entries, others=others)


@contextmanager
def create(path: Path, *, layout: str, configs: Mapping[str, AttentionConfig]) -> Iterator[Add]:
    """Write a state_dict."""
    import torch

    tensors: dict[str, torch.Tensor] = {}

    def add(name: str, array: NDArray) -> None:
        array = np.array(array, order="C")
        if str(array.dtype) == "bfloat16":
            tensors[name] = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            tensors[name] = torch.from_numpy(array)

    yield add
    whole = io.BytesIO()  # what torch says of a full disk names neither the file nor the disk
    torch.save(tensors, whole)
    path.write_bytes(whole.getbuffer())


def _zipped(archive: zipfile.ZipFile) -> Content:
    names = archive.namelist()
    pickles = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1 or any(name.endswith("/constants.pkl") for name in names):
        raise NotWhole("it must hold one data.pkl, as torch.save writes it, and no program (TorchScript)")
    folder = pickles[0].removesuffix("data.pkl")
    data = read_member(archive, pickles[0])
    order = read_member(archive, f"{folder}byteorder") if f"{folder}byteorder" in names else b"little"
    if order not in (b"little", b"big"):
        raise NotWhole(f"its byte order must be little or big. Got {shown(repr(order))}.")
    tree = unpickle(io.BytesIO(data), len(data))
    return Content(tree, len(data), lambda key: read_member(archive, f"{folder}data/{key}"), order == b"little")


def _old(path: Path) -> Content:
    size = path.stat().st_size
    with path.open("rb") as file:
        if unpickle(file, size) != MAGIC_NUMBER or unpickle(file, size) != OLD_VERSION:
            raise NotWhole("it does not begin as files of torch.save do")
        system = unpickle(file, size)
        start = file.tell()
        tree = unpickle(file, size)
        length = file.tell() - start
        keys = unpickle(file, size)
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
            raise NotWhole("the keys of its storages must be a list of texts, each once")
        little = isinstance(system, dict) and system.get("little_endian") is True
        storages = {tensor.storage.key: tensor.storage for tensor in _tensors(tree, length)}
        places: dict[str, tuple[int, int]] = {}
        for key in keys:
            numel = int.from_bytes(file.read(8), "little" if little else "big")
            if key not in storages or numel != storages[key].numel:
                raise NotWhole(f"the storage {shown(repr(key))} has {numel} numbers, and its tensors say otherwise")
            places[key] = (file.tell(), numel * _itemsize(storages[key].dtype))
            file.seek(places[key][1], 1)
        if file.tell() != size:
            raise NotWhole("it is not as long as its storages say")

    def read(key: str) -> bytes:
        begin, count = places[key]
        with path.open("rb") as file:
            file.seek(begin)
            return file.read(count)

    return Content(tree, length, read, little)


def _tensors(tree: Any, length: int) -> Iterator[Tensor]:
    return (leaf for leaf in _all_leaves(tree, length).values() if isinstance(leaf, Tensor))


def _leaves(content: Content) -> dict[str, Any]:
    return _all_leaves(content.tree, content.length)


def _all_leaves(tree: Any, length: int) -> dict[str, Any]:
    """Everything that is no dict, by its name. NotWhole for dicts nested too deep, or a repeated name."""
    found: dict[str, Any] = {}
    waiting, seen = [("", tree, 0)], 0
    while waiting:
        prefix, branch, depth = waiting.pop()
        inner = []
        for key, value in branch.items():
            seen += 1
            # Dicts that stand in one another many times would be more than anything that the file can hold.
            if seen > length or depth > DEEPEST:
                raise NotWhole(f"its dicts stand in one another deeper than {DEEPEST}, or more often than it is long")
            if not isinstance(key, str | int):
                raise NotWhole(f"a name must be a text. Got {_kind(key)}.")
            name = f"{prefix}{key}"
            if name in found:
                raise NotWhole(f"the name {shown(repr(name))} stands there twice")
            if isinstance(value, dict):
                inner.append((f"{name}.", value, depth + 1))
            else:
                found[name] = value
        waiting += reversed(inner)
    return found


def _entry(content: Content, tensor: Tensor) -> Entry:
    return Entry(tensor.shape, tensor.dtype, partial(_load, content, tensor))


def _load(content: Content, tensor: Tensor) -> NDArray:
    stored = _dtype(tensor.dtype).newbyteorder("<" if content.little_endian else ">")
    data = content.storage(tensor.storage.key)
    if len(data) != tensor.storage.numel * _itemsize(tensor.storage.dtype):
        raise NotWhole(f"a storage must have {tensor.storage.numel} numbers. Got {len(data)} bytes.")
    numbers = np.frombuffer(data, stored)
    last = tensor.offset + sum((axis - 1) * step for axis, step in zip(tensor.shape, tensor.strides, strict=True))
    if prod(tensor.shape) and last >= numbers.size:
        raise NotWhole("a tensor goes beyond its storage")
    steps = [step * stored.itemsize for step in tensor.strides]
    view = as_strided(numbers[tensor.offset :], tensor.shape, steps, writeable=False)
    return np.array(view, _dtype(tensor.dtype), order="C")


def _dtype(name: str) -> np.dtype:
    return bfloat16() if name == "bfloat16" else np.dtype(name)


def _itemsize(dtype: str) -> int:
    """Bytes of one number of a storage."""
    known = {"bytes": 1, "bfloat16": 2}
    return known[dtype] if dtype in known else np.dtype(dtype).itemsize


def _kind(value: Any) -> str:
    return value.name if isinstance(value, Other) else type(value).__name__
