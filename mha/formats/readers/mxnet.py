"""MXNet's .params files, by their binary format (src/ndarray/ndarray.cc of MXNet 1.x), without MXNet.

MXNet itself runs beside old versions of NumPy only, so a porter may well be without it.

    uint64 0x112, uint64 0, uint64 count, `count` arrays, uint64 count, `count` names
    name:  uint64 length, bytes
    array: uint32 magic, int32 storage type (not in version 1), shape, int32 device type, int32 device id,
           int32 dtype, the numbers
    shape: int32 ndim, int64 each; little-endian throughout
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from mha.formats.checkpoint import Add, Checkpoint, Entry, collect, not_whole
from mha_core import AttentionConfig, SpecError

FILE_MAGIC = 0x112
VERSION_1, VERSION_2, VERSION_3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
"""The magic numbers of an array: version 3 is that of mx.np, whose arrays may have no axes."""

DENSE = 0
CPU = 1
DTYPES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
"""The dtypes, by their number in the file. Later numbers exist, but no layer has weights of them."""

LONGEST_NAME = 1 << 16


class _Damaged(Exception):
    """The bytes do not follow the format."""


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """Open the file as a Checkpoint. Names of arrays lose the prefix "arg:" or "aux:" that mx.model writes."""
    try:
        entries = collect(path, _entries(path))
    except _Damaged as error:
        raise not_whole(path, "MXNet params", str(error)) from error
    yield Checkpoint(path, entries)


@contextmanager
def create(path: Path, *, layout: str, configs: Mapping[str, AttentionConfig]) -> Iterator[Add]:
    """Return a context that writes a file for mx.nd.load, mx.npx.load and Block.load_parameters, array by array."""
    names: list[bytes] = []
    with path.open("wb") as file:
        file.write(struct.pack("<QQQ", FILE_MAGIC, 0, 0))

        def add(name: str, array: NDArray) -> None:
            if str(array.dtype) not in DTYPES:
                raise SpecError(f"a .params file can't hold {array.dtype} (it can: {', '.join(DTYPES)})")
            axes = struct.pack(f"<i{array.ndim}q", array.ndim, *array.shape)
            dtype = DTYPES.index(str(array.dtype))
            file.write(struct.pack("<Ii", VERSION_2, DENSE) + axes + struct.pack("<iii", CPU, 0, dtype))
            file.write(np.ascontiguousarray(array).data)
            names.append(name.encode())

        yield add
        file.write(struct.pack("<Q", len(names)))
        for name in names:
            file.write(struct.pack("<Q", len(name)) + name)
        file.seek(16)
        file.write(struct.pack("<Q", len(names)))


def _entries(path: Path) -> Iterator[tuple[str, Entry]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        magic, reserved, count = _numbers(file, "QQQ")
        if magic != FILE_MAGIC or reserved:
            raise _Damaged(f"it must begin with {FILE_MAGIC:#x}. Got {magic:#x}.")
        # An array takes 4 bytes at the least, so a damaged count can't keep us here.
        if count > size // 4:
            raise _Damaged(f"it can't hold {count} arrays in {size} bytes")
        arrays = [_skip_array(path, file, size) for _ in range(count)]
        (named,) = _numbers(file, "Q")
        if named != count:
            raise _Damaged(f"it holds {count} arrays and {named} names")
        names = [_name(file) for _ in range(named)]
        if file.tell() != size:
            raise _Damaged(f"it goes on after its last name, at byte {file.tell()} of {size}")
    for name, entry in zip(names, arrays, strict=True):
        yield name.removeprefix("arg:").removeprefix("aux:"), entry


def _skip_array(path: Path, file: BinaryIO, size: int) -> Entry:
    (magic,) = _numbers(file, "I")
    if magic not in (VERSION_1, VERSION_2, VERSION_3):
        raise _Damaged(f"at byte {file.tell() - 4} there must be an array. Got {magic:#x}.")
    if magic != VERSION_1:
        (storage,) = _numbers(file, "i")
        if storage != DENSE:
            raise _Damaged(f"at byte {file.tell() - 4} there must be a dense array. Got storage type {storage}.")
    (ndim,) = _numbers(file, "i")
    if not -1 <= ndim <= 32:
        raise _Damaged(f"at byte {file.tell() - 4} there must be a number of axes. Got {ndim}.")
    if ndim < (0 if magic == VERSION_3 else 1):  # an array that was never filled: nothing follows
        return Entry((0,), "none", partial(np.zeros, 0))
    shape = _numbers(file, f"{ndim}q")
    _, _, number = _numbers(file, "iii")
    if not 0 <= number < len(DTYPES) or any(axis < 0 for axis in shape):
        raise _Damaged(f"at byte {file.tell() - 4} there must be a shape and a dtype. Got {shape} and {number}.")
    dtype, start = np.dtype(DTYPES[number]), file.tell()
    if start + dtype.itemsize * prod(shape) > size:
        raise _Damaged(f"the array of shape {shape} at byte {start} goes beyond the file's {size} bytes")
    file.seek(dtype.itemsize * prod(shape), 1)
    return Entry(shape, dtype.name, partial(_load, path, start, shape, dtype))


def _load(path: Path, start: int, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
    return np.fromfile(path, dtype, prod(shape), offset=start).reshape(shape)


def _numbers(file: BinaryIO, kinds: str) -> tuple[int, ...]:
    form = f"<{kinds}"
    data = file.read(struct.calcsize(form))
    if len(data) < struct.calcsize(form):
        raise _Damaged("it ends early")
    return struct.unpack(form, data)


def _name(file: BinaryIO) -> str:
    (length,) = _numbers(file, "Q")
    if length > LONGEST_NAME:
        raise _Damaged(f"a name can't be {length} bytes long")
    data = file.read(length)
    if len(data) < length:
        raise _Damaged("it ends early")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _Damaged(f"a name is not text: {error}") from error
