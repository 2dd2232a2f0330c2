"""Arrays as the bytes of a safetensors file, and back, with bfloat16 in plain NumPy.

The package safetensors writes metadata in any order, and needs `ml_dtypes` for bfloat16; here equal arrays give equal
bytes, and bfloat16 numbers are in float32 arrays, as everywhere in this project.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from mha_core import SpecError
from mha_core.errors import one_line, shown
from mha_core.files.tensorfile import read_header

CODES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "BOOL": "|b1"}
"""Name of a dtype in the file -> how NumPy calls its little-endian numbers; those of bfloat16 are its 16 bits."""

FLOATS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Name of a dtype -> its name in the file."""

Typed = tuple[str, NDArray]
"""The name of a dtype in the file, and an array; bfloat16 numbers in float32."""


def to_bytes(arrays: Mapping[str, Typed], metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file with these arrays as bytes; larger dtypes come first, so that every array is aligned.

    >>> data = to_bytes({"x": ("BF16", np.float32([1.0, -2.0]))}, {})
    >>> data[-4:].hex(), len(data) % 8
    ('803f00c0', 4)
    """
    order = sorted(arrays, key=lambda name: (-np.dtype(CODES[arrays[name][0]]).itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    parts, end = [], 0
    for name in order:
        code, array = arrays[name]
        data = (_halves(array) if code == "BF16" else np.asarray(array, CODES[code])).tobytes()
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [end, end + len(data)]}
        parts.append(data)
        end += len(data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return b"".join((len(text).to_bytes(8, "little"), text, *parts))


def _halves(array: NDArray) -> NDArray[np.uint16]:
    """The upper halves of float32 numbers, which are bfloat16 numbers."""
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype("<u2").reshape(np.shape(array))


def from_file(path: Path) -> dict[str, Typed]:
    """Return the arrays in a safetensors file: name -> (name of the dtype in the file, array).

    Raises:
        SpecError: the file is cut off, is no safetensors file, or holds an unknown dtype; the message is one line.
    """
    read_header(path)
    try:
        return {name: _array(name, about) for name, about in deserialize(path.read_bytes())}
    except (SafetensorError, ValueError) as error:
        raise SpecError(f"{path} is not a whole safetensors file of arrays: {one_line(error)}") from error


def _array(name: str, about: Mapping[str, Any]) -> Typed:
    code = about["dtype"]
    if code not in CODES:
        raise ValueError(f"{shown(name)} must be of {', '.join(CODES)}. Got {code}.")
    array = np.frombuffer(about["data"], CODES[code]).reshape(about["shape"])
    return code, (array.astype(np.uint32) << 16).view(np.float32) if code == "BF16" else array
