"""Arrays as the bytes of a safetensors file, and back, with bfloat16 in plain NumPy.

The package safetensors writes metadata in any order, and needs `ml_dtypes` for bfloat16; here equal arrays give equal
bytes, and bfloat16 numbers are in float32 arrays, as everywhere in this project.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core import SpecError
from mha_core.errors import shown
from mha_core.files.outside import parse_json_object
from mha_core.files.tensorfile import read_header

CODES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "BOOL": "|b1"}
"""Name of a dtype in the file -> how NumPy calls its little-endian numbers; those of bfloat16 are its 16 bits."""

FLOATS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Name of a dtype -> its name in the file."""

Typed = tuple[str, NDArray]
"""The name of a dtype in the file, and an array; bfloat16 numbers in float32."""


def to_bytes(arrays: Mapping[str, Typed], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a file with these arrays; larger dtypes come first, so that every array is aligned.

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


def from_file(path: Path, data: bytes) -> dict[str, Typed]:
    """Return the arrays of a file with these bytes, by name, each with the name of its dtype in the file.

    Raises:
        SpecError: the file is cut off, is no safetensors file, or holds other dtypes; the message is one line.
    """
    read_header(path)
    length = int.from_bytes(data[:8], "little")
    header = parse_json_object(data[8 : 8 + length], what=f"{path}: its header")
    header.pop("__metadata__", None)
    return {name: _array(path, name, about, data[8 + length :]) for name, about in header.items()}


def _array(path: Path, name: str, about: Any, data: bytes) -> Typed:
    try:
        code, shape, (start, end) = about["dtype"], tuple(about["shape"]), about["data_offsets"]
        whole = all(type(one) is int and one >= 0 for one in (*shape, start, end))
    except (TypeError, KeyError, ValueError) as error:
        raise SpecError(f"{path}: {shown(name)} has no dtype, shape and data_offsets") from error
    if not isinstance(code, str) or code not in CODES:
        raise SpecError(f"{path}: {shown(name)} must be of {', '.join(CODES)}. Got {shown(repr(code))}.")
    dtype = np.dtype(CODES[code])
    if not whole or end - start != prod(shape) * dtype.itemsize or end > len(data):
        raise SpecError(f"{path}: {shown(name)} has bytes that do not fit its shape {shown(repr(about['shape']))}")
    array = np.frombuffer(data[start:end], dtype).reshape(shape)
    return code, (array.astype(np.uint32) << 16).view(np.float32) if code == "BF16" else array
