"""What a damaged file came to: a refusal in one line, the same layer, or a finding."""

from __future__ import annotations

import json
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mha_core import SpecError
from tests.fuzz.damage import Damaged
from tests.fuzz.file_kinds import KINDS, Part, Whole, whole_files

FINDINGS = ("traceback", "hang", "memory", "crash", "another layer", "other numbers", "bad message")
"""Verdicts that are findings; `Outcome` says what the others are."""


RENAMED = "renamed"


@dataclass(frozen=True)
class Outcome:
    """What came of one file: a finding, or one of these.

    refused: in one line. same: the layers that it holds, to the bit. renamed: the same layers, one of which has
    another name (a format without checksums can't know). damaged numbers: the same but for numbers that were damaged
    themselves. other: it was changed on purpose, so that its checksums fit, and may hold anything.
    """

    verdict: str
    text: str = ""
    seconds: float = 0.0
    memory: int = 0

    @property
    def is_finding(self) -> bool:
        return self.verdict in FINDINGS


@dataclass(frozen=True)
class Base:
    """A whole file, what it comes to, and where its numbers stand."""

    whole: Whole
    parts: list[Part]
    numbers: list[tuple[int, int]]


def bases_of(kind: str, folder: Path) -> list[Base]:
    """Every whole file of a kind, read once."""
    found = []
    for whole in whole_files(kind):
        parts = KINDS[kind].read(_put(folder, whole, whole.data))
        found.append(Base(whole, parts, _numbers(whole.data, parts)))
    return found


def _put(folder: Path, whole: Whole, data: bytes) -> Path:
    for name, content in whole.beside.items():
        if (
            not (folder / name).exists()
            or (folder / name).stat().st_size != len(content)
            or (folder / name).read_bytes() != content
        ):
            (folder / name).write_bytes(content)
    (folder / whole.name).write_bytes(data)
    return folder / whole.name


def _numbers(data: bytes, parts: list[Part]) -> list[tuple[int, int]]:
    """Where the bytes of arrays stand in the file, as far as they stand there as they are."""
    found = []
    for _, _, arrays in parts:
        for array in arrays.values():
            forms = [np.ascontiguousarray(array), np.ascontiguousarray(array.T)]
            if array.dtype == np.float32:
                forms += [(form.view(np.uint32) >> 16).astype(np.uint16) for form in forms]
            for form in forms:
                raw = form.tobytes()
                start = data.find(raw) if len(raw) >= 8 else -1
                while start >= 0:  # zeros stand at many places
                    found.append((start, start + len(raw)))
                    start = data.find(raw, start + 1)
    return sorted(set(found))


def judge(kind: str, base: Base, one: Damaged, folder: Path) -> Outcome:
    """Read one damaged file."""
    path = _put(folder, base.whole, one.data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parts = KINDS[kind].read(path)
    except SpecError as error:
        text = str(error)
        bad = len(text) > 4000 or not all(line.isprintable() for line in text.split("\n")) or "\n" in text
        return Outcome("bad message" if bad else "refused", text)
    except BaseException:
        return Outcome("traceback", traceback.format_exc())
    difference = _difference(base.parts, parts)
    if difference == "numbers":
        inside = one.on_purpose or _only_inside(base, one.data)
        return Outcome("damaged numbers" if inside else "other numbers", "numbers differ")
    if difference == RENAMED:
        return Outcome("renamed")
    if difference and base.whole.name == "config.json" and _numbers_of_config(base.whole.data, one.data):
        return Outcome("damaged numbers", difference)
    if difference:
        return Outcome("other" if one.on_purpose else "another layer", difference)
    return Outcome("same")


def _difference(wanted: list[Part], found: list[Part]) -> str:
    """What is another: "" for nothing, "numbers" for these alone."""
    numbers = ""
    if [name for name, _, _ in wanted] != [name for name, _, _ in found]:
        if len(wanted) != len(found) or not _kept_names_agree(wanted, found):
            return f"layers {[name for name, _, _ in found]}"
        kept = {name for name, _, _ in wanted} & {name for name, _, _ in found}
        moved = iter([part for part in found if part[0] not in kept])
        now = {part[0]: part for part in found}
        found = [now[part[0]] if part[0] in kept else next(moved) for part in wanted]
        numbers = RENAMED
    for (name, said, arrays), (_, now_said, now) in zip(wanted, found, strict=True):
        if repr(said) != repr(now_said):
            return f"{name}: {now_said}, not {said}"
        described = {key: (array.shape, str(array.dtype)) for key, array in arrays.items()}
        if described != {key: (array.shape, str(array.dtype)) for key, array in now.items()}:
            return f"{name}: other arrays"
        if any(array.tobytes() != now[key].tobytes() for key, array in arrays.items()):
            numbers = "numbers"
    return numbers


def _kept_names_agree(wanted: list[Part], found: list[Part]) -> bool:
    """Whether nothing stands under another one's name, as far as its numbers tell."""
    before = {name: arrays for name, _, arrays in wanted}
    for name, _, now in found:
        for other, arrays in before.items():
            same = now and len(now) == len(arrays) and all(_same(array, arrays.get(key)) for key, array in now.items())
            if same and other != name and name in before:
                return False
    return True


def _same(one: np.ndarray, other: np.ndarray | None) -> bool:
    return other is not None and one.shape == other.shape and one.tobytes() == other.tobytes()


def _numbers_of_config(whole: bytes, data: bytes) -> bool:
    """Whether a file in JSON says other numbers, and nothing else is another: that is all that it has of numbers."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(inner) for key, inner in value.items()}
        return "a number" if isinstance(value, int | float) and not isinstance(value, bool) else value

    return bool(without(json.loads(whole)) == without(json.loads(data)))


def _only_inside(base: Base, data: bytes) -> bool:
    """Whether numbers were damaged themselves."""
    whole = base.whole.data
    if len(data) == len(whole):
        changed = np.flatnonzero(np.frombuffer(whole, np.uint8) != np.frombuffer(data, np.uint8))
        return any(((changed >= start) & (changed < end)).any() for start, end in base.numbers)
    start = next((i for i, (a, b) in enumerate(zip(whole, data, strict=False)) if a != b), min(len(whole), len(data)))
    return any(begin - 64 <= start < end for begin, end in base.numbers)
