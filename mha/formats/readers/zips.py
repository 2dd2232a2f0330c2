"""Safe reading of foreign zip archives (.npz, .pt, .keras): no name twice, no hidden bytes, no zip bombs."""

import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mha.formats.checkpoint import check_growth
from mha_core.errors import shown

METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
"""The methods of compression that can be read."""

LONGEST_TAIL = 24
"""Most bytes that a record of sizes may take after a member."""

LOCAL_HEADER = struct.Struct("<4s5H3L2H")
ENCRYPTED, UTF_8 = 1, 0x800
"""Flags of a member."""


class NotWhole(ValueError):
    """An error: the archive breaks a rule that every writer follows; the message names the rule."""


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive and check its table of contents; the bytes of a member are checked when it is read.

    Raises:
        NotWhole, zipfile.BadZipFile, OSError, ValueError: the archive is damaged.
        SpecError: its unpacked members are far larger than the file.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        seen: set[str] = set()
        for member in members:
            # zipfile gives the last one of that name, and cuts names at the first NUL.
            if member.filename in seen or member.orig_filename != member.filename:
                raise NotWhole(f"the member {shown(repr(member.orig_filename))} stands there twice")
            seen.add(member.filename)
            if member.flag_bits & ENCRYPTED or member.compress_type not in METHODS:
                raise NotWhole(f"the member {shown(repr(member.filename))} is encrypted or packed in an unusual way")
            if member.compress_type == zipfile.ZIP_STORED and member.compress_size != member.file_size:
                raise NotWhole(f"the member {shown(repr(member.filename))} has two sizes")
        _check_local_headers(path, archive)
        check_growth(path, sum(member.file_size for member in members), "its members")
        yield archive


def read_member(archive: zipfile.ZipFile, name: str | zipfile.ZipInfo) -> bytes:
    """Return all bytes of a member. Raises zipfile.BadZipFile if its CRC is wrong."""
    info = archive.getinfo(name) if isinstance(name, str) else name
    with archive.open(info) as member:
        data = member.read()
        if len(data) != info.file_size or member.read(1):
            raise zipfile.BadZipFile(f"{shown(repr(info.filename))} is not as long as the archive says")
    return data


def check_sum(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Check a member's CRC without keeping its bytes in memory. Raises zipfile.BadZipFile if the CRC is wrong."""
    with archive.open(info) as member:
        while member.read(1 << 20):
            pass


def _check_local_headers(path: Path, archive: zipfile.ZipFile) -> None:
    """Compare the table of contents with what stands before each member.

    Raises:
        NotWhole: an entry and its member have different names, or the members do not fill the file up to the table:
            then the table has lost one.
    """
    end = 0
    with path.open("rb") as file:
        for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
            what = f"the member {shown(repr(member.filename))}"
            if not end <= member.header_offset <= end + LONGEST_TAIL:
                raise NotWhole(f"before {what} stands what no entry names")
            file.seek(member.header_offset)
            raw = file.read(LOCAL_HEADER.size)
            if len(raw) < LOCAL_HEADER.size:
                raise NotWhole(f"{what} goes beyond the file")
            _, _, flags, method, *_, name_length, extra_length = LOCAL_HEADER.unpack(raw)
            name = file.read(name_length).decode("utf-8" if flags & UTF_8 else "cp437", errors="replace")
            if name != member.orig_filename or (flags, method) != (member.flag_bits, member.compress_type):
                raise NotWhole(f"{what} does not fit its entry in the table of contents: it says {shown(repr(name))}")
            end = member.header_offset + LOCAL_HEADER.size + name_length + extra_length + member.compress_size
    if not end <= archive.start_dir <= end + LONGEST_TAIL:
        raise NotWhole("its table of contents does not follow its last member")
