"""Damage, drawn by hypothesis: what storage, transfers and slips do to a file, and what somebody does on purpose."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_.]{3,40}")
DIGIT = re.compile(rb"[0-9]")
ODD_NUMBERS = (0, 1, 2, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1.7, 10**9, 2**63 - 1, 2**70, 10**400, 1e308, "", "x", "\x1b[2J", "[/red]\n"),
    *("x" * 5000, [], {}, [[]], [1, 2], {"array": "queries"}, {"a": {"b": {}}}, "bfloat16", "float64"),
)


@dataclass(frozen=True)
class Damaged:
    """A file after damage.

    Attributes:
        data: its bytes.
        what: what was done.
        on_purpose: whether checksums and lengths were made to fit again: then it may be another whole file.
    """

    data: bytes
    what: str
    on_purpose: bool = False


Draw = Callable[[Any], Any]


def _place(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> int:
    """Where; mostly outside the numbers."""
    for _ in range(4):
        place: int = draw(st.integers(0, max(0, len(data) - 1)))
        if not any(start <= place < end for start, end in numbers):
            break
    return place


def flip(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> bytes:
    place = _place(draw, data, numbers)
    return data[:place] + bytes([data[place] ^ (1 << draw(st.integers(0, 7)))]) + data[place + 1 :]


def other_byte(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> bytes:
    place = _place(draw, data, numbers)
    return data[:place] + bytes([draw(st.integers(0, 255))]) + data[place + 1 :]


def cut(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> bytes:
    return data[: draw(st.integers(0, len(data) - 1))]


def take_out(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> bytes:
    place = _place(draw, data, numbers)
    return data[:place] + data[place + draw(st.integers(1, 64)) :]


def insert(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> bytes:
    place = _place(draw, data, numbers)
    return data[:place] + draw(st.binary(min_size=1, max_size=16)) + data[place:]


def repeat(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> bytes:
    place = _place(draw, data, numbers)
    return data[: place + draw(st.integers(1, 200))] + data[place:]


def zero(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> bytes:
    place = _place(draw, data, numbers)
    count = min(draw(st.sampled_from((1, 2, 4, 8, 16, 64, 512))), len(data) - place)
    return data[:place] + bytes(count) + data[place + count :]


def swap(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> bytes:
    size = draw(st.sampled_from((1, 2, 4, 8, 32, 512)))
    one, other = sorted((_place(draw, data, numbers), _place(draw, data, numbers)))
    if other + size > len(data) or one + size > other:
        return data
    middle = data[one + size : other]
    return data[:one] + data[other : other + size] + middle + data[one : one + size] + data[other + size :]


def number(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> bytes:
    place = _place(draw, data, numbers)
    form = draw(st.sampled_from(("<H", "<I", "<Q", ">I")))
    size = struct.calcsize(form)
    if place + size > len(data):
        return data
    (now,) = struct.unpack_from(form, data, place)
    value = draw(st.sampled_from((*ODD_NUMBERS, now + 1, now - 1, now * 2, len(data)))) % (1 << 8 * size)
    return data[:place] + struct.pack(form, value) + data[place + size :]


def digit(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> bytes:
    found = [match.start() for match in DIGIT.finditer(data[:20_000])]
    if not found:
        return data
    place = draw(st.sampled_from(found))
    return data[:place] + b"%d" % draw(st.integers(0, 9)) + data[place + 1 :]


def rename(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> bytes:
    """One letter of a name, or a whole name in another's place."""
    words = list(WORD.finditer(data))
    if not words:
        return data
    word = draw(st.sampled_from(words))
    letters = bytearray(word[0])
    how = draw(st.sampled_from(("letter", "other word", "exchange", "long", "markup")))
    if how == "letter":
        letters[draw(st.integers(0, len(letters) - 1))] = draw(st.sampled_from(b"abkqvo_.019/"))
    elif how == "other word":
        other = draw(st.sampled_from(words))[0]
        letters = bytearray(other[: len(letters)].ljust(len(letters), b"_"))
    elif how == "exchange":
        place = draw(st.integers(0, len(letters) - 2))
        letters[place], letters[place + 1] = letters[place + 1], letters[place]
    else:
        letters = bytearray(b"x" * 3000 if how == "long" else b"\x1b[2J[/red]\n")
    return data[: word.start()] + bytes(letters) + data[word.end() :]


ACCIDENTS = (flip, other_byte, cut, take_out, insert, repeat, zero, swap, number, digit, rename)
"""What befalls a file; those that leave its length alone are read the furthest."""


# On purpose ------------------------------------------------------------------------------------------------


def in_json(draw: Draw, data: bytes) -> bytes:
    """Something in a header or a file in JSON has another value, or another name; the lengths fit again."""
    header = struct.unpack("<Q", data[:8])[0] if len(data) > 8 else 0
    inside = 0 < header <= len(data) - 8
    text, rest = (data[8 : 8 + header], data[8 + header :]) if inside else (data, b"")
    try:
        content = json.loads(text)
    except ValueError:
        return data
    if inside and isinstance(content.get("__metadata__"), dict):
        content["__metadata__"].pop("mha_seal", None)
        for key, value in list(content["__metadata__"].items()):
            if value.startswith("{") and draw(st.booleans()):
                inner = json.loads(value)
                _change(draw, inner)
                content["__metadata__"][key] = json.dumps(inner)
                break
        else:
            _change(draw, content)
    else:
        _change(draw, content)
    made = json.dumps(content).encode()
    return struct.pack("<Q", len(made)) + made + rest if inside else made


def _change(draw: Draw, content: Any) -> None:
    """Somewhere in it."""
    for _ in range(12):
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        below = content[key]
        if isinstance(below, dict | list) and below and draw(st.integers(0, 4)):
            content = below
            continue
        how = draw(st.sampled_from(("value", "value", "value", "gone", "renamed")))
        if how == "value":
            content[key] = draw(st.sampled_from(ODD_VALUES))
        elif how == "gone":
            del content[key]
        elif isinstance(content, dict):
            content[
                draw(st.sampled_from(("x", "", "\x1b[2J", "mha_config", "array", "weight_map", str(key) + "_")))
            ] = content.pop(key)
        return


def in_zip(draw: Draw, data: bytes) -> bytes:
    """A member is damaged, renamed or left out, and the archive made anew, with checksums that fit."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except (zipfile.BadZipFile, EOFError):
        return data
    index = draw(st.integers(0, len(members) - 1))
    name, content = members[index]
    how = draw(st.sampled_from(("content", "content", "content", "content", "name", "gone", "long")))
    if how == "content" and content:
        accident = draw(st.sampled_from(ACCIDENTS))
        members[index] = name, accident(draw, content, [])
    elif how == "name":
        members[index] = (
            draw(st.sampled_from(("x.npy", "archive/data.pkl", "\x1b[2J.npy", "y" * 5000 + ".npy"))),
            content,
        )
    elif how == "gone":
        del members[index]
    else:
        members[index] = name, content + bytes(draw(st.sampled_from((1, 100, 30_000_000))))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", draw(st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return out.getvalue()


@st.composite
def damaged(draw: Draw, data: bytes, numbers: list[tuple[int, int]]) -> Damaged:
    """The file after one to three accidents, or changed on purpose."""
    purposes = [in_zip] if data[:2] == b"PK" else [in_json] if b"{" in data[:16] else []
    if purposes and draw(st.integers(0, 2)) == 0:
        made = purposes[0](draw, data)
        return Damaged(made, purposes[0].__name__, on_purpose=True)
    what = []
    made = data
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        accident = draw(st.sampled_from(ACCIDENTS))
        if made:
            made = accident(draw, made, numbers)
            what.append(accident.__name__)
    return Damaged(made, "+".join(what))
