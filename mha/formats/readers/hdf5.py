"""Safe reading of foreign HDF5 files: every dataset must hold its own numbers; links to other places are refused.

HDF5 can take a dataset's numbers from any other file (external storage, virtual datasets, external links), give a
number for what was never written, or run a filter that it loads from a folder. A file of weights needs none of these.
With them, a hostile file copies another file's content, or claims gigabytes that it does not have.
"""

import itertools
import mmap
from collections.abc import Iterator
from math import prod
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mha.formats.checkpoint import Refused, largest_claim
from mha_core.errors import shown

DEEPEST = 64
"""Most groups that may be nested."""

FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32"}
"""The filters that are part of HDF5 itself, by number."""


FLOATS = tuple(getattr(h5py.h5t, f"IEEE_F{bits}{order}") for bits in (16, 32, 64) for order in ("LE", "BE"))
"""The floating-point types of IEEE 754; another one is a damaged one."""

STRUCTURES = (b"SNOD\x01\x00", b"HEAP\x00\x00\x00\x00", b"TREE\x00\x00")
"""How parts of the file that hold names and addresses begin."""


def datasets(file: h5py.File, size: int, *, has_list: bool = False) -> dict[str, h5py.Dataset]:
    """Return path -> dataset for every dataset of a file, in the file's order, after checking that each is safe.

    Args:
        file: the file, open for reading.
        size: the size of the file in bytes; no array may be far larger.
        has_list: whether the caller has a list of the arrays. If not, empty groups are checked for lost arrays.

    Raises:
        Refused: a link, a dataset or a type refers to another file, or claims data that are not there.
    """
    if file.driver == "sec2":
        _check_length(file.filename, size)
    found: dict[str, h5py.Dataset] = {}
    groups = {_address(file["/"]): ""}
    places: list[tuple[int, int, str]] = []
    for path, item in _walk(file["/"], "", groups, 0):
        check_dataset(path, item, size)
        offset, nbytes = item.id.get_offset(), item.id.get_storage_size()
        if offset is not None and nbytes:
            places.append((offset, offset + nbytes, path))
        found[path] = item
    places.sort()
    _check_apart(places)
    _check_one_order(found)
    if file.driver == "sec2":
        _check_only_numbers(
            file.filename,
            places,
            [_header(item) for item in (*(file[path or "/"] for path in groups.values()), *found.values())],
        )
    parents = {path.rpartition("/")[0] for path in (*found, *groups.values())}
    empty = any(path not in parents for path in groups.values() if path)
    if empty and not has_list and file.driver == "sec2" and not any(dataset.chunks for dataset in found.values()):
        _check_nothing_lost(file.filename, places, len(found) + len(groups) - 1)
    return found


def numbers_of(dataset: h5py.Dataset) -> NDArray:
    """Return the numbers of a dataset, in the byte order of this machine."""
    array = np.asarray(dataset[()])
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _walk(group: h5py.Group, prefix: str, seen: dict[int, str], depth: int) -> Iterator[tuple[str, h5py.Dataset]]:
    if depth > DEEPEST:
        raise Refused(f"its groups stand in one another deeper than {DEEPEST}")
    for name in group:
        path = f"{prefix}{name}"
        kind = group.id.links.get_info(name.encode("utf-8", "surrogateescape")).type
        if kind != h5py.h5l.TYPE_HARD:
            words = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "a link into another file"}
            raise Refused(f"{shown(path)} is {words.get(kind, 'a link of an unknown kind')}, which is not followed")
        item = group[name]
        if isinstance(item, h5py.Dataset):
            yield path, item
        elif isinstance(item, h5py.Group):
            address = _address(item)
            if address in seen:
                raise Refused(f"{shown(path)} is a group that stands at another place too")
            seen[address] = path
            yield from _walk(item, f"{path}/", seen, depth + 1)
        else:
            raise Refused(f"{shown(path)} is a type of the file's own, which no weights need")


def check_dataset(path: str, dataset: h5py.Dataset, size: int) -> None:
    """Raise Refused unless all numbers of a dataset are in the file itself, and can fit into its `size` bytes."""
    what = shown(path)
    plan, kind = dataset.id.get_create_plist(), dataset.id.get_type()
    if plan.get_external_count():
        raise Refused(f"{what} takes its numbers from another file (external storage), which is not read")
    layout = plan.get_layout()
    if layout == h5py.h5d.VIRTUAL:
        raise Refused(f"{what} takes its numbers from other datasets (a virtual one), which is not read")
    own_float = kind.get_class() == h5py.h5t.FLOAT and not any(kind.equal(known) for known in FLOATS)
    if kind.committed() or own_float:
        raise Refused(f"{what} is of a type of the file's own, which no weights need")
    if dataset.shape is None:
        raise Refused(f"{what} is a dataset that holds nothing")
    claimed = prod(dataset.shape) * kind.get_size()
    if claimed > largest_claim(size):
        raise Refused(f"{what} claims {claimed} bytes in a file of {size}")
    for index in range(plan.get_nfilters()):
        number = plan.get_filter(index)[0]
        if number not in FILTERS:
            raise Refused(f"{what} needs the filter number {number} (known: {', '.join(FILTERS.values())})")
    if layout == h5py.h5d.CHUNKED:
        _check_chunks(what, dataset, plan.get_chunk(), kind.get_size(), size)
    elif claimed > dataset.id.get_storage_size():
        raise Refused(f"{what} was never written: the file has {dataset.id.get_storage_size()} of its {claimed} bytes")
    elif claimed < dataset.id.get_storage_size():
        raise Refused(f"{what} claims {claimed} bytes, and the file has {dataset.id.get_storage_size()} of it")


def _check_chunks(what: str, dataset: h5py.Dataset, chunk: tuple[int, ...], itemsize: int, size: int) -> None:
    if prod(chunk) * itemsize > largest_claim(size):
        raise Refused(f"{what} claims blocks of {prod(chunk) * itemsize} bytes in a file of {size}")
    wanted = prod(-(-axis // block) for axis, block in zip(dataset.shape, chunk, strict=True))
    if dataset.id.get_num_chunks() != wanted:
        raise Refused(f"{what} was never written: the file has {dataset.id.get_num_chunks()} of its {wanted} blocks")


def _check_apart(places: list[tuple[int, int, str]]) -> None:
    """Raise Refused if two arrays stand in the same bytes, as they do where an address is damaged."""
    for (_, end, path), (start, _, other) in itertools.pairwise(places):
        if start < end:
            raise Refused(f"{shown(path)} and {shown(other)} stand in the same bytes")


def _check_one_order(found: dict[str, h5py.Dataset]) -> None:
    """Raise Refused if numbers stand in both orders of bytes: one machine wrote the file, so one of them is damaged."""
    first: dict[str, str] = {}
    for path, dataset in found.items():
        if dataset.dtype.kind in "fiu":
            first.setdefault(dataset.dtype.str[0], path)
    if {"<", ">"} <= set(first):
        raise Refused(f"{shown(first['>'])} is big-endian and {shown(first['<'])} is not")


def _header(item: h5py.Group | h5py.Dataset) -> tuple[int, int]:
    """The bytes of an object's header, or of its beginning if it goes on elsewhere."""
    found = h5py.h5o.get_info(item.id)
    return found.addr, found.addr + (found.hdr.space.total if found.hdr.nchunks == 1 else 1)


def _check_only_numbers(path: str, places: list[tuple[int, int, str]], headers: list[tuple[int, int]]) -> None:
    """Raise Refused if an array stands where the file keeps names and addresses: then its own address is damaged."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for start, end, name in places:
            within = any(start < last and first < end for first, last in headers)
            if within or any(data.find(mark, start, end) >= 0 for mark in STRUCTURES):
                raise Refused(f"{shown(name)} stands where the file keeps names and addresses")


def _check_length(path: str, size: int) -> None:
    """Raise Refused if the file is longer than its header says: bytes were inserted, and shifted all that follows."""
    with open(path, "rb") as file:
        start = file.read(48)
    if not start.startswith(b"\x89HDF\r\n\x1a\n"):
        return  # something of the user's own stands before it
    if start[8] in (0, 1):  # the version of the first block
        base, end = start[24 + 4 * start[8] :][:8], start[40 + 4 * start[8] :][:8]
    else:
        base, end = start[12:20], start[28:36]
    if int.from_bytes(base, "little") == 0 and len(end) == 8 and int.from_bytes(end, "little") != size:
        raise Refused(f"it says that it ends at byte {int.from_bytes(end, 'little')}, and it has {size} bytes")


def _check_nothing_lost(path: str, places: list[tuple[int, int, str]], links: int) -> None:
    """Raise Refused if the file has more names than its groups have: a damaged group looks like an empty one.

    A group keeps its names in nodes that begin with SNOD (a version, a byte, their number). They are searched outside
    the arrays, where nothing else begins so.
    """
    known = 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        begin = 0
        for start, end, _ in (*places, (len(data), len(data), "")):
            while (begin := data.find(b"SNOD\x01\x00", begin, start)) >= 0:
                known += int.from_bytes(data[begin + 6 : begin + 8], "little")
                begin += 8
            begin = end
    if known > links:
        raise Refused(
            f"{known} names stand in it, and its groups have {links}: it is damaged, or something was deleted from it, "
            "which h5repack makes good"
        )


def _address(item: Any) -> int:
    return int(h5py.h5o.get_info(item.id).addr)
