"""Checks a results file against `schema.json`, with the part of JSON Schema that this schema uses.

The tests check the schema itself with the package jsonschema; so a user who shows a results file need not install it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mha_core.errors import SpecError, shown

SCHEMA = Path(__file__).with_name("schema.json")

KINDS: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str) and all(line.isprintable() for line in value.splitlines()),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
"""Type -> a function that tells whether a value has it. Strings with characters that can't be printed do not."""


def check_form(value: Any, where: str) -> None:
    """Raise SpecError, with the place, unless a value has the form of a results file; `where` names the file.

    >>> check_form({"rows": 3}, "results.json")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: results.json: it lacks 'schema'
    """
    _check(value, _schema(), where, "")


def _check(value: Any, schema: Mapping[str, Any], where: str, place: str) -> None:
    if "$ref" in schema:
        schema = _schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    at = f"{where}: {place.removeprefix('.')} " if place else f"{where}: it "
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(KINDS[kind](value) for kind in kinds):
        raise SpecError(f"{at}must be of type {' or '.join(kinds)}. Got {shown(repr(value))}.")
    if "const" in schema and value != schema["const"]:
        raise SpecError(f"{at}must be {schema['const']!r}. Got {shown(repr(value))}.")
    if "enum" in schema and value not in schema["enum"]:
        raise SpecError(f"{at}must be one of {', '.join(schema['enum'])}. Got {shown(repr(value))}.")
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        raise SpecError(f"{at}must be at least {schema['minimum']}. Got {shown(repr(value))}.")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                raise SpecError(f"{at}lacks {name!r}")
        for name, inner in value.items():
            more = schema.get("additionalProperties", True)
            if not name.isprintable() or (name not in known and more is False):
                raise SpecError(f"{at}has {shown(repr(name))}, which is not known")
            if isinstance(known.get(name, more), dict):
                _check(inner, known.get(name, more), where, f"{place}.{shown(name)}")
    elif isinstance(value, list) and "items" in schema:
        for index, inner in enumerate(value):
            _check(inner, schema["items"], where, f"{place}[{index}]")


@cache
def _schema() -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return found
