"""The file that `mha matrix` reads: sets of requirements, checked field by field before any work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from conformance.cases.table import select_asked
from mha_core.backend import names
from mha_core.dtypes import check_dtype
from mha_core.errors import SpecError
from mha_core.files.outside import parse_toml

DEFAULT_DTYPES = ("float64", "float32")

PYTHON = re.compile(r"3\.(1[1-9]|[2-9]\d)(\.\d{1,2})?")
"""A version of an interpreter that this project runs on; anything else is its path."""


@dataclass(frozen=True)
class ReleaseSet:
    """Requirements that are installed together.

    Attributes:
        name: its name in tables, such as "torch 2.5".
        requirements: as uv takes them, sorted.
        backends: the backends that run in it.
        python: a version such as "3.12", or the path of an interpreter; "" for the one that runs now.
        note: a sentence that stands beside it in the table.
    """

    name: str
    requirements: tuple[str, ...]
    backends: tuple[str, ...]
    python: str = ""
    note: str = ""


@dataclass(frozen=True)
class Request:
    """A whole file.

    Attributes:
        sets: in the order of the file.
        cases: patterns of ids of cases; none for the whole table.
        dtypes: the dtypes to run in.
    """

    sets: tuple[ReleaseSet, ...]
    cases: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DEFAULT_DTYPES


def read(path: Path) -> Request:
    """The request in a file. Raises SpecError, one line that names file, set and field, if anything is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} can't be read as a file of sets: {error}") from error
    return parse(text, source=str(path))


def parse(text: str, *, source: str) -> Request:
    r"""The request that a text in TOML describes; `source` is its name in messages. Raises SpecError.

    >>> text = '[[set]]\nname = "numpy 1"\nrequirements = ["numpy<2"]\nbackends = ["torch"]'
    >>> parse(text, source="mine.toml").sets[0].requirements
    ('numpy<2',)
    >>> parse(text.replace("numpy<2", "numpy=1"), source="mine.toml")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: mine.toml: set 1 ('numpy 1'): 'numpy=1' is no requirement such as torch==2.5.*
    """
    table = parse_toml(text, what=source)
    entries = table.pop("set", [])
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise SpecError(f"{source}: it must hold sets; write [[set]] above each")
    _check_fields(source, table, {"set": None, "cases": [], "dtypes": []})
    sets = tuple(_set(entry, number, source) for number, entry in enumerate(entries, start=1))
    for one, other in combinations(sets, 2):
        if one.name == other.name:
            raise SpecError(f"{source}: two sets have the name {one.name!r}; it must be unique")
        if (one.requirements, one.python) == (other.requirements, other.python):
            raise SpecError(f"{source}: {one.name!r} and {other.name!r} ask for the same environment; join them")
    request = Request(sets, tuple(table.get("cases", ())), tuple(table.get("dtypes", DEFAULT_DTYPES)))
    if not request.dtypes:
        raise SpecError(f"{source}: dtypes must name one at least")
    try:
        select_asked(request.cases)
        for dtype in request.dtypes:
            check_dtype(dtype)
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from error
    return request


def _set(entry: dict[str, Any], number: int, source: str) -> ReleaseSet:
    where = f"{source}: set {number}" + (f" ({entry['name']!r})" if isinstance(entry.get("name"), str) else "")
    _check_fields(where, entry, {"name": "", "requirements": [], "backends": [], "python": "", "note": ""})
    for field in ("name", "requirements", "backends"):
        if field not in entry:
            raise SpecError(f"{where} lacks {field!r}, which every set has")
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    one = ReleaseSet(**{**fields, "requirements": tuple(sorted(entry["requirements"]))})
    for backend in one.backends:
        if backend not in names():
            raise SpecError(f"{where}: backend {backend!r} is not known (known: {', '.join(names())})")
    if not one.backends or len(set(one.backends)) < len(one.backends):
        raise SpecError(f"{where}: backends must name one at least, each once. Got {list(one.backends)}.")
    _check_requirements(where, one.requirements)
    if one.python and not PYTHON.fullmatch(one.python) and "/" not in one.python and "\\" not in one.python:
        wanted = "python must be a version from 3.11 on, such as 3.12, or a path"
        raise SpecError(f"{where}: {wanted}. Got {one.python!r}.")
    if not one.name.strip() or one.name != one.name.strip() or not one.name.isprintable():
        raise SpecError(f"{where}: name must be a printable text on one line. Got {one.name!r}.")
    return one


def _check_requirements(where: str, texts: tuple[str, ...]) -> None:
    seen: dict[str, str] = {}
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise SpecError(f"{where}: {text!r} is no requirement such as torch==2.5.*") from error
        key = f"{canonicalize_name(requirement.name)} {requirement.marker}"
        if key in seen:
            raise SpecError(f"{where}: {seen[key]!r} and {text!r} are about one package; write them as one")
        seen[key] = text
    if not texts:
        raise SpecError(f"{where}: requirements must name one package at least, such as torch==2.5.*")


def _check_fields(where: str, table: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise SpecError unless each field is one of those that are known: a list of texts, or a text."""
    for field, value in table.items():
        if field not in known:
            raise SpecError(f"{where} has the unknown field {field!r} (known: {', '.join(known)})")
        if isinstance(known[field], str) and not isinstance(value, str):
            raise SpecError(f"{where}: {field} must be a text. Got {value!r}.")
        if isinstance(known[field], list) and not (
            isinstance(value, list) and all(isinstance(text, str) for text in value)
        ):
            raise SpecError(f"{where}: {field} must be a list of texts. Got {value!r}.")
