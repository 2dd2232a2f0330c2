"""ArrayPool: the arrays of a safetensors file, each stored once, to which a description in JSON refers by name."""

import hashlib
import os
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mha_core import SpecError
from mha_core.dtypes import check_held
from mha_core.errors import shown
from mha_core.files.mistaken import taken_by
from mha_core.files.tensorfile import read_tensors, to_sealed
from mha_core.files.writing import write_whole

MODULES = "modules."
"""How the names of arrays start that belong to the modules of a recording; they are read one by one."""

Reference = Mapping[str, str]
"""{"array": its name}, and "as": "bfloat16" where the file holds the upper halves of float32 numbers."""


class ArrayPool:
    """A pool of named arrays that are written into one file.

    >>> pool = ArrayPool()
    >>> pool.add("queries", np.ones((2, 3)), "float64"), pool.add("keys", np.ones((2, 3)), "float64")
    ({'array': 'queries'}, {'array': 'queries'})
    """

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray] = {}
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def add(self, name: str, array: NDArray, dtype: str) -> Reference:
        """Store an array, unless an equal one is there, and return a JSON reference to the stored one.

        Args:
            name: the array's name in the file, if it is stored.
            array: the array; bfloat16 numbers as float32.
            dtype: the name of the numbers' dtype; only "bfloat16" matters.

        Raises:
            SpecError: dtype is bfloat16, and bfloat16 can't represent a number of the array.
        """
        array = np.ascontiguousarray(array).reshape(np.shape(array))  # it makes a scalar one-dimensional
        reference = {}
        if dtype == "bfloat16" and array.dtype == np.float32:
            check_held(name, array, dtype)
            array, reference = (array.view(np.uint32) >> 16).astype(np.uint16), {"as": dtype}
        key = str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).digest()
        if key not in self._names:
            self._names[key] = name
            self.arrays[name] = array
        return {"array": self._names[key], **reference}

    def write(self, path: str | os.PathLike[str], key: str, description: str) -> None:
        """Write the arrays into one file, with `description` in its metadata under `key`, atomically."""
        write_whole(path, to_sealed(self.arrays, {key: description}))


def array_of(reference: Reference, arrays: Mapping[str, NDArray]) -> NDArray:
    """Return the array that a reference from `ArrayPool.add` names. KeyError or SpecError if the reference is wrong."""
    name = reference["array"]
    array = arrays[name]
    if set(reference) == {"array"}:
        return array
    if dict(reference) != {"array": name, "as": "bfloat16"}:
        raise SpecError(f"an array is referred to by its name, and as bfloat16. Got {shown(repr(dict(reference)))}.")
    if array.dtype != np.uint16:
        raise SpecError(f"{name} must hold bfloat16 numbers as uint16. Got {array.dtype}.")
    wide: NDArray = (array.astype(np.uint32) << 16).view(np.float32)
    return wide


def read(path: str | os.PathLike[str], key: str, *, what: str) -> tuple[dict[str, NDArray], str]:
    """Return the arrays of a file, read-only, and the description in its metadata.

    Raises:
        SpecError: the file is no whole safetensors file, or has no description at `key` (message: it is no `what`).
        FileNotFoundError: there is no such file.
    """
    arrays, metadata = read_tensors(path, leave=MODULES)
    if key not in metadata:
        raise SpecError(f"{path} is no {what}: {taken_by(path)}")
    for array in arrays.values():
        array.flags.writeable = False
    return arrays, metadata[key]
