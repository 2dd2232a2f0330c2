"""Keras 3's .weights.h5 and .keras files, through h5py.

A layer's variables stand in a group of the layer's path: .../query_dense/vars/0 is the kernel of the
sublayer that MultiHeadAttention keeps as `query_dense`, and vars/1 its bias. GroupQueryAttention keeps
the same one as `_query_dense`. Here both are called query/kernel and query/bias, as Keras names the
variables themselves.
"""

import io
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mha.formats.checkpoint import Add, Checkpoint, Entry, bfloat16, collect, not_whole, reading
from mha.formats.readers.hdf5 import datasets, numbers_of
from mha.formats.readers.zips import check_sum, open_zip
from mha_core import AttentionConfig

WEIGHTS = "model.weights.h5"
"""The member of a .keras archive that holds the weights."""

SUBLAYERS = {"query_dense": "query", "key_dense": "key", "value_dense": "value", "output_dense": "attention_output"}
"""Attribute of MultiHeadAttention -> name of the sublayer in it. GroupQueryAttention's attributes begin with "_"."""

VARIABLES = ("kernel", "bias")
"""The variables that a dense layer keeps as vars/0 and vars/1."""


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """Open the file as a Checkpoint, whose arrays are read on demand."""
    form = "Keras model" if path.name.endswith(".keras") else "Keras weights"
    with ExitStack() as stack:
        with reading(path, form):
            file = stack.enter_context(_open(path, stack))
            entries = collect(path, _entries(datasets(file, path.stat().st_size)))
        if not entries:
            raise not_whole(path, form, "it holds no variables of layers as Keras 3 keeps them, in groups called vars")
        yield Checkpoint(path, entries)


@contextmanager
def create(path: Path, *, layout: str, configs: Mapping[str, AttentionConfig]) -> Iterator[Add]:
    """Return a context that writes a file for keras.saving.load_weights and Model.load_weights, array by array."""
    disk = _Disk(path, "w+b")
    with disk, h5py.File(disk, "w") as file:

        def add(name: str, array: NDArray) -> None:
            where = path_of(name, layout)
            if str(array.dtype) == "bfloat16":
                # As Keras does it: HDF5 has no such type, so two bytes each and a note.
                file.create_dataset(where, data=np.ascontiguousarray(array).view("V2")).attrs["dtype"] = "bfloat16"
            else:
                file.create_dataset(where, data=array)
            disk.check()

        yield add
    disk.check()


class _Disk(io.FileIO):
    """A file that keeps the error of a write for `check`: HDF5 ends the process where a disk is full as it closes."""

    error: OSError | None = None

    def check(self) -> None:
        """Raise what the system said of a write that failed."""
        if self.error is not None:
            raise self.error

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        try:
            while self.error is None and left:
                left = left[super().write(left) :]
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        read = super().readinto(view) or 0
        if self.error is not None:  # what was not written reads as zeros, so that HDF5 can close
            view[read:] = bytes(len(view) - read)
        return len(view) if self.error is not None else read


def path_of(name: str, layout: str) -> str:
    """Return the path in the file at which Keras stores the variable of this name.

    >>> path_of("attn/query/kernel", "keras"), path_of("attn/query/bias", "keras-gqa"), path_of("W_q/kernel", "d2l-tf")
    ('attn/query_dense/vars/0', 'attn/_query_dense/vars/1', 'W_q/vars/0')
    """
    *folders, sublayer, variable = name.split("/")
    kept_as = {own: ("_" if layout == "keras-gqa" else "") + attribute for attribute, own in SUBLAYERS.items()}
    sublayer = sublayer if layout == "d2l-tf" else kept_as[sublayer]
    return "/".join((*folders, sublayer, "vars", str(VARIABLES.index(variable))))


def _open(path: Path, stack: ExitStack) -> Any:
    if not path.name.endswith(".keras"):
        return h5py.File(path, "r")
    archive = stack.enter_context(open_zip(path))
    member = archive.getinfo(WEIGHTS)
    if member.compress_type == zipfile.ZIP_STORED:
        # As Keras keeps it: h5py can seek in it as in any file.
        check_sum(archive, member)
        return h5py.File(stack.enter_context(archive.open(member)), "r")
    # Zipped again by somebody: each step back would unpack it from its beginning.
    unpacked = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack is one
    with archive.open(member) as packed:
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    return h5py.File(unpacked, "r")


def _entries(found: Mapping[str, Any]) -> Iterator[tuple[str, Entry]]:
    for name, dataset in found.items():
        noted = dataset.attrs.get("dtype") if dataset.dtype.kind == "V" else None
        bf16 = isinstance(noted, str) and noted == "bfloat16" and dataset.dtype == np.dtype("V2")
        dtype = "bfloat16" if bf16 else dataset.dtype.name
        yield _own_name(name, found), Entry(dataset.shape, dtype, partial(_load, dataset, bf16))


def _own_name(name: str, there: Mapping[str, Any]) -> str:
    """Keras' own name for a variable of a dense layer; the path of any other item."""
    *folders, sublayer, group, number = ["", "", *name.split("/")]
    first = there.get("/".join((*folders, sublayer, "vars", "0")).lstrip("/"))
    if group != "vars" or number not in ("0", "1") or first is None or len(first.shape) < 2:
        return name
    sublayer = SUBLAYERS.get(sublayer.removeprefix("_"), sublayer)
    return "/".join((*folders, sublayer, VARIABLES[int(number)])).lstrip("/")


def _load(dataset: Any, bf16: bool) -> NDArray:
    return np.asarray(dataset[()]).view(bfloat16()) if bf16 else numbers_of(dataset)
