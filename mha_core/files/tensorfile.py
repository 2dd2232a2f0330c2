"""Safe reading of safetensors files, with a seal of the header in those that this project writes.

The format has no checksum, so a damaged byte in a name, a shape or a config can describe another layer. Files of this
project have a seal in their metadata: a digest of the header, and a file is refused if it does not fit. Files without
a seal are read too. The digest does not cover the numbers.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from numpy.typing import NDArray

from mha_core.errors import SpecError, one_line, shown
from mha_core.files.outside import parse_json_object

SEAL = "mha_seal"
"""The metadata key of the digest."""

UNSEALED = "0" * 64
"""Placeholder for the digest while it is computed."""

_PLACE = re.compile(rb'"%b":"[0-9a-f]{64}"' % SEAL.encode())
"""The seal in a header. Texts in JSON inside the header escape their quotation marks, so they can't match."""

LONGEST_HEADER = 100_000_000
"""The safetensors package refuses a longer one."""

LONGEST_NAME = 1000
"""Most characters that the name of an array may have."""


@dataclass(frozen=True)
class Header:
    """The header of a safetensors file.

    Attributes:
        metadata: name -> text, from the file's metadata.
        arrays: names of the arrays, in the order of the header.
        size: the bytes of the header, including the eight bytes that hold its length.
    """

    metadata: Mapping[str, str]
    arrays: tuple[str, ...]
    size: int


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read the header of a safetensors file, and check its seal (a digest of the header in the metadata), if any.

    The package safetensors checks offsets and shapes when it opens the file.

    Raises:
        SpecError: the file is cut off, a name occurs twice or is not printable, or the seal is wrong.
    """
    raw = _raw_header(Path(path))
    found = parse_json_object(raw, what=f"{path} is not a whole safetensors file: its header")
    metadata = found.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise SpecError(f"{path} is not a whole safetensors file: its metadata must be texts")
    for name in found:
        check_name(path, name)
    size, whole = Path(path).stat().st_size, 8 + len(raw) + _end(found)
    if size < whole:
        raise SpecError(f"{path} is not a whole safetensors file: it is cut off, at {size:,} of {whole:,} bytes")
    if SEAL in metadata and (len(_PLACE.findall(raw)) != 1 or _digest(raw) != metadata[SEAL]):
        raise SpecError(f"{path} is not a whole safetensors file: its header is not as it was written (mha_seal)")
    return Header(metadata, tuple(found), 8 + len(raw))


def read_tensors(path: str | os.PathLike[str], *, leave: str = "") -> tuple[dict[str, NDArray], Mapping[str, str]]:
    """Return (name -> array, metadata) of a file. Arrays whose names start with `leave` are left out, unless it is "".

    Raises:
        SpecError: the file is not whole or its header is refused; the message is one line.
        FileNotFoundError: there is no such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    from safetensors import safe_open  # where it is missing, as in a browser, what needs no file goes on

    header = read_header(path)
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in header.arrays if not (leave and name.startswith(leave))}
        for name, array in arrays.items():
            if max(array.shape, default=0) > Path(path).stat().st_size:  # of an array without numbers
                raise ValueError(f"{name} claims the shape {array.shape}")
        return arrays, header.metadata
    except Exception as error:  # SafetensorError; TypeError for a dtype that NumPy lacks; OSError
        raise SpecError(f"{path} is not a whole safetensors file of arrays: {one_line(error)}") from error


def to_sealed(arrays: Mapping[str, NDArray], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a safetensors file with these arrays, this metadata and a seal (a digest of the header)."""
    from safetensors.numpy import save

    data = save(dict(arrays), metadata={**metadata, SEAL: UNSEALED})
    length = int.from_bytes(data[:8], "little")
    return data[:8] + sealed_header(data[8 : 8 + length]) + data[8 + length :]


def seal_file(path: Path) -> None:
    """Replace the placeholder UNSEALED in the metadata of a safetensors file by the digest of the header."""
    raw = _raw_header(path)
    with path.open("r+b") as file:
        file.seek(8)
        file.write(sealed_header(raw))


def sealed_header(raw: bytes) -> bytes:
    """Return the header `raw` with sorted metadata and with its digest in place of UNSEALED; the length stays the same.

    The package safetensors writes metadata in any order, but equal arrays must give equal files.
    """
    header = json.loads(raw)
    metadata = dict(sorted(header.pop("__metadata__").items()))
    ordered = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":"), ensure_ascii=False).encode()
    raw = ordered.ljust(len(raw)) if len(ordered) <= len(raw) else raw
    return _PLACE.sub(lambda _: b'"%b":"%b"' % (SEAL.encode(), _digest(raw).encode()), raw)


def check_name(where: object, name: str) -> None:
    """Raise SpecError unless the name of an array in the file `where` is printable and not too long."""
    if not isinstance(name, str) or not name.isprintable() or len(name) > LONGEST_NAME:
        rule = f"must be printable and at most {LONGEST_NAME} characters long"
        raise SpecError(f"{where}: the name of an array {rule}. Got {shown(repr(name))}.")


def _digest(raw: bytes) -> str:
    """The digest of a header with UNSEALED in place of its seal."""
    return hashlib.sha256(_PLACE.sub(b'"%b":"%b"' % (SEAL.encode(), UNSEALED.encode()), raw)).hexdigest()


def _raw_header(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_HEADER):
            looks = looks_like(path)
            why = (
                f"{'it is' if looks == EMPTY else 'its first bytes are those of:'} {looks}"
                if looks not in ("", "safetensors")
                else "its header ends beyond it: it is cut off, or no such file"
            )
            raise SpecError(f"{path} is not a whole safetensors file: {why}")
        return file.read(length)


def _end(entries: Mapping[str, Any]) -> int:
    """Bytes of the arrays, by what the header says; entries of another form are left to the package safetensors."""
    offsets = [one.get("data_offsets") for one in entries.values() if isinstance(one, dict)]
    ends = [one[1] for one in offsets if isinstance(one, list) and len(one) == 2 and type(one[1]) is int]
    return max(ends, default=0)


EMPTY, TEXT = "an empty file", "a text"
"""What `looks_like` says of a file without a byte, and of one that begins with plain words."""


def looks_like(path: Path) -> str:
    """Return in words the format of a file, by its first bytes; "" if they are of no known format."""
    with path.open("rb") as file:
        start = file.read(16)
    if not start:
        return EMPTY
    signatures = (
        (b"PK\x03\x04", "zip archive (as .npz, .keras and .pt files are)"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"\x12\x01\x00\x00\x00\x00\x00\x00", "MXNet params"),
        (b"\x80\x02", "pickle"),
        (b"\x80\x03", "pickle"),
        (b"\x80\x04", "pickle"),
        (b"\x80\x05", "pickle"),
        (b"version https://", "a Git LFS pointer: the file itself has not been fetched"),
        (b"<", "a web page"),
    )
    for signature, name in signatures:
        if start.startswith(signature):
            return _archive(path) or name if name.startswith("zip") else name
    if start[8:9] == b"{":
        return "safetensors"
    return TEXT if start.isascii() and start.decode("ascii").replace("\n", " ").isprintable() else ""


ARCHIVES = {"data.pkl": (".pt", "torch.save"), "model.weights.h5": (".keras", "Keras"), ".npy": (".npz", "NumPy")}
"""The end of a name in a zip archive -> the suffix of such archives, and what writes them."""


def _archive(path: Path) -> str:
    """What wrote a zip archive, in words, and what to call it; "" where that is not known."""
    try:
        with ZipFile(path) as archive:
            names = archive.namelist()
    except (BadZipFile, OSError, ValueError):
        return ""
    found = (one for end, one in ARCHIVES.items() if any(name.endswith(end) for name in names))
    suffix, writer = next(found, ("", ""))
    right = "" if path.suffix == suffix else f": rename it {shown(path.stem)}{suffix}"
    return f"zip archive of {writer}{right}" if suffix else ""
