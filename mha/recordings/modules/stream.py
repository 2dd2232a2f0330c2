"""ArrayStream: arrays written to disk as they come, each once, and a safetensors file made of them at the end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core import SpecError
from mha_core.files.tensorfile import LONGEST_HEADER, SEAL, UNSEALED, sealed_header
from mha_core.files.writing import written_whole

KINDS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""NumPy's dtype -> that of safetensors."""


class ArrayStream:
    """Arrays on their way into one file. Nothing is kept in memory but their names and digests.

    Args:
        beside: the file that will be written; the arrays wait in its folder.
        limit: most bytes of arrays.
    """

    def __init__(self, beside: Path, limit: int) -> None:
        self._waiting = tempfile.TemporaryFile(dir=beside.parent)  # noqa: SIM115  # `close` ends it
        self._limit = limit
        self._names: dict[bytes, str] = {}
        self._header: dict[str, Any] = {}
        self._size = 0

    def add(self, array: NDArray) -> str:
        """Write an array, unless an equal one was, and return its name. SpecError beyond the limit."""
        array = np.asarray(array, order="C")
        name = self._names.setdefault(self.digest(array), f"modules.{len(self._names)}")
        if name not in self._header:
            if self._size + array.nbytes > self._limit:
                raise SpecError(
                    f"the recording is at its limit of {self._limit} bytes (limit=). Record fewer modules (only=, "
                    "depth=) or a smaller batch, or allow more"
                )
            self.put(name, array)
        return name

    @staticmethod
    def digest(array: NDArray) -> bytes:
        """The digest of an array's numbers, dtype and shape."""
        array = np.asarray(array, order="C")
        found = hashlib.sha256(array.reshape(-1).view(np.uint8).data)
        found.update(f"{array.dtype}{array.shape}".encode())
        return found.digest()

    def put(self, name: str, array: NDArray) -> None:
        """Write an array under a name of its own."""
        array = np.asarray(array, order="C")
        end = self._size + array.nbytes
        about = {"dtype": KINDS[array.dtype.name], "shape": list(array.shape), "data_offsets": [self._size, end]}
        self._header[name], self._size = about, end
        self._waiting.write(array.reshape(-1).view(np.uint8).data)

    def finish(self, path: str | os.PathLike[str], metadata: Mapping[str, str]) -> None:
        """Write the file, whole or not at all. SpecError if it has more arrays than a header can name."""
        header = {"__metadata__": {**metadata, SEAL: UNSEALED}, **self._header}
        raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        raw = raw.ljust(-(-len(raw) // 8) * 8)
        if len(raw) > LONGEST_HEADER:
            raise SpecError(
                f"the recording needs {len(raw)} bytes to name its calls, and a file has room for {LONGEST_HEADER}: "
                "record fewer modules (only=, depth=)"
            )
        raw = sealed_header(raw)
        with written_whole(path) as temporary, temporary.open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            self._waiting.seek(0)
            shutil.copyfileobj(self._waiting, file, 1 << 22)

    def close(self) -> None:
        """Free the disk."""
        self._waiting.close()
