"""NumPy's npz files, with "/" or "." in the names as the layout has it; nothing pickled is read."""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mha.formats.checkpoint import Add, Checkpoint, Entry, collect, not_whole, reading
from mha.formats.readers.zips import open_zip
from mha_core import AttentionConfig, SpecError
from mha_core.errors import shown


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """Open the archive as a Checkpoint, whose arrays are read on demand."""
    with ExitStack() as stack:
        with reading(path, "npz"):
            archive = stack.enter_context(open_zip(path))
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        if not members:
            raise not_whole(path, "npz", "there is no array in the archive")
        named = ((info.filename.removesuffix(".npy"), _entry(path, archive, info)) for info in members)
        yield Checkpoint(path, collect(path, named))


@contextmanager
def create(path: Path, *, layout: str, configs: Mapping[str, AttentionConfig]) -> Iterator[Add]:
    """Return a context that writes an archive, array by array."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:

        def add(name: str, array: NDArray) -> None:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, np.ascontiguousarray(array), allow_pickle=False)

        yield add


def _entry(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Entry:
    with reading(path, "npz"), archive.open(info) as member:
        version = npy.read_magic(member)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(member)
        start = member.tell()
    if dtype.hasobject:
        raise SpecError(
            f"{path}: {shown(info.filename)} holds pickled objects, whose reading could run code; it is refused"
        )
    if any(axis < 0 for axis in shape) or info.file_size - start != dtype.itemsize * prod(shape):
        raise not_whole(path, "npz", f"{shown(info.filename)} is not as long as its shape says")
    return Entry(shape, dtype.name, partial(_load, archive, info))


def _load(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray:
    with archive.open(info) as member:
        array: NDArray = npy.read_array(member, allow_pickle=False)
        if member.read(1):  # at the end, the checksum is compared
            raise ValueError("it is longer than its shape says")
    return array.astype(array.dtype.newbyteorder("="), copy=False)
