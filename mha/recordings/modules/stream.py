"""ArrayStream: arrays written to disk as they come, each once, and a safetensors file made of them at the end."""

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
    np.dtype("float64"): "F64",
    np.dtype("float32"): "F32",
    np.dtype("float16"): "F16",
    np.dtype("int64"): "I64",
    np.dtype("int32"): "I32",
    np.dtype("int16"): "I16",
    np.dtype("int8"): "I8",
    np.dtype("uint64"): "U64",
    np.dtype("uint32"): "U32",
    np.dtype("uint16"): "U16",
    np.dtype("uint8"): "U8",
    np.dtype("bool"): "BOOL",
}
"""NumPy's dtype -> that of safetensors."""

SAMPLE = 16
"""About how many elements of an array say whether another one may be equal."""

MOST_ALIKE = 4
"""Arrays of one sample that are read again to be compared; further ones have digests, which cost more each."""


class ArrayStream:
    """A stream that writes arrays into one file. Only their names and samples stay in memory.

    Args:
        beside: the file that will be written; until then the arrays are in a temporary file in the same folder.
        limit: the most bytes of arrays.
    """

    def __init__(self, beside: Path, limit: int) -> None:
        self._waiting = tempfile.TemporaryFile(dir=beside.parent)  # noqa: SIM115  # `close` ends it
        self._limit = limit
        self._alike: dict[tuple[Any, ...], list[str]] = {}
        self._digests: dict[bytes, str] = {}
        self._header: dict[str, Any] = {}
        self._size = self._added = 0

    def add(self, array: NDArray) -> str:
        """Write an array, unless an equal one was written. Return the written one's name. SpecError beyond `limit`."""
        array = np.asarray(array, order="C")
        flat = array.reshape(-1)
        key = array.dtype, array.shape, flat[:: max(1, flat.size // SAMPLE)].tobytes()
        alike = self._alike.setdefault(key, [])
        found = next((name for name in alike if self._holds(name, flat)), None)
        if found is None and len(alike) == MOST_ALIKE:
            digest = self.digest(array)
            found = self._digests.get(digest)
        if found is not None:
            return found
        if self._size + array.nbytes > self._limit:
            raise SpecError(
                f"the recording is at its limit of {self._limit} bytes (limit=). Record fewer modules (only=, "
                "depth=) or a smaller batch, or allow more"
            )
        name = f"modules.{self._added}"
        self._added += 1
        if len(alike) < MOST_ALIKE:
            alike.append(name)
        else:
            self._digests[digest] = name
        self.put(name, array)
        return name

    def _holds(self, name: str, flat: NDArray) -> bool:
        """Whether the bytes on disk under this name are those of the array."""
        start, end = self._header[name]["data_offsets"]
        self._waiting.flush()
        return os.pread(self._waiting.fileno(), end - start, start) == flat.tobytes()

    @staticmethod
    def digest(array: NDArray) -> bytes:
        """Return the digest of an array's numbers, dtype and shape."""
        array = np.asarray(array, order="C")
        found = hashlib.sha256(array.reshape(-1).view(np.uint8).data)
        found.update(f"{array.dtype}{array.shape}".encode())
        return found.digest()

    def put(self, name: str, array: NDArray) -> None:
        """Write an array under a given name, even if an equal one was written."""
        array = np.asarray(array, order="C")
        end = self._size + array.nbytes
        about = {"dtype": KINDS[array.dtype], "shape": list(array.shape), "data_offsets": [self._size, end]}
        self._header[name], self._size = about, end
        self._waiting.write(array.reshape(-1).view(np.uint8).data)

    def finish(self, path: str | os.PathLike[str], metadata: Mapping[str, str]) -> None:
        """Write the file, whole or not at all. SpecError if its header would be longer than LONGEST_HEADER bytes."""
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
        """Delete the temporary file."""
        self._waiting.close()
