"""A table of deviations in TOML, checked field by field."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from conformance.deviations.entry import EVERY_GRADIENT, EVERYTHING, Deviation
from mha_core import STAGES, SpecError
from mha_core.call.call import LEAVES
from mha_core.dtypes import DTYPES
from mha_core.files.outside import parse_toml
from mha_core.reference.rules import RULES
from mha_core.stages import GRADIENT
from mha_core.weights import NAMES

TEXTS = ("id", "subject", "summary", "definition", "reason", "link")
"""Fields that every entry has, besides `versions`."""

PLACES = ("cases", "dtypes", "arrays")
"""Fields for the cases that show it; an entry that no case shows has `probe` in their place."""

GRADIENTS = tuple(f"{GRADIENT}{name}" for name in (*LEAVES, *NAMES))
"""Every gradient that a Trace can have, as `Trace.arrays` names it."""

SPEC = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
"""package.module:name."""


def read(text: str, *, source: str) -> tuple[Deviation, ...]:
    """The entries of one file; `source` is its name in messages. Raises SpecError.

    >>> read("[[deviation]]", source="mine.toml")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: mine.toml: entry 1 lacks 'id', which every entry has
    """
    table = parse_toml(text, what=source)
    extra = [name for name in table if name != "deviation"]
    if extra:
        raise SpecError(f"{source} holds {extra[0]!r}; it may hold [[deviation]] alone")
    found = table.get("deviation", [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise SpecError(f"{source}: deviation must be an array of tables; write [[deviation]] above each entry")
    entries = tuple(entry_of(entry, number, source) for number, entry in enumerate(found, start=1))
    check_ids(entries, source=source)
    return entries


def check_ids(entries: Iterable[Deviation], *, source: str) -> None:
    """Raise SpecError if two entries have one id."""
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise SpecError(f"{source}: two entries have the id {entry.id!r}; it must be unique")
        seen.add(entry.id)


def entry_of(table: Mapping[str, Any], number: int, source: str) -> Deviation:
    """The entry that a table describes.

    Args:
        table: the table that TOML gives.
        number: its position, from 1, for messages.
        source: the name of the file, for messages.

    Raises:
        SpecError: a field is missing, unknown, or wrong; the message names file, entry and field.
    """
    identifier = table.get("id")
    where = f"{source}: entry {number}" + (f" ({identifier!r})" if isinstance(identifier, str) else "")
    known = (*TEXTS, "versions", *PLACES, "probe", "only_where")
    for name in table:
        if name not in known:
            raise SpecError(f"{where} has the unknown field {name!r} (known: {', '.join(known)})")
    for name in (*TEXTS, "versions"):
        if name not in table:
            raise SpecError(f"{where} lacks {name!r}, which every entry has")
    texts: dict[str, Any] = {name: _text(where, name, table[name]) for name in TEXTS}
    _match(where, "id", texts["id"], re.compile(r"[a-z0-9]+(-[a-z0-9]+)*"), "kebab-case, such as masked-row-is-nan")
    _match(where, "subject", texts["subject"], SPEC, "package.module:name")
    _link(where, texts["link"])
    texts["definition"] = _definition(where, texts["definition"])
    return Deviation(
        **texts,
        versions=tuple(_requirement(where, text) for text in _texts(where, "versions", table["versions"])),
        only_where=_text(where, "only_where", table["only_where"]) if "only_where" in table else "",
        **_places(where, table),
    )


def _places(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """The fields for where it shows: cases, dtypes and arrays, or a probe."""
    given = [name for name in PLACES if name in table]
    if "probe" in table:
        if given:
            raise SpecError(f"{where} has 'probe' and {given[0]!r}; it must have a probe, or cases and arrays")
        return {"probe": _match(where, "probe", _text(where, "probe", table["probe"]), SPEC, "package.module:function")}
    missing = [name for name in ("cases", "arrays") if name not in table]
    if missing:
        raise SpecError(f"{where} lacks {missing[0]!r}; it must have cases and arrays, or a probe")
    choices: dict[str, Collection[str]] = {
        "cases": _case_ids(),
        "dtypes": DTYPES,
        "arrays": (*STAGES, *GRADIENTS, EVERYTHING, EVERY_GRADIENT),
    }
    hints = {"cases": "`mha cases` lists them", "arrays": "stages, gradients.NAME, gradients.*, or *"}
    return {
        name: _members(where, name, _texts(where, name, table[name]), choices[name], hints.get(name, ", ".join(DTYPES)))
        for name in given
    }


def _text(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{where}: {name} must be a text. Got {value!r}.")
    return value.strip()


def _texts(where: str, name: str, value: Any) -> tuple[str, ...]:
    """The value as a tuple of texts, none twice; `versions` may be a single text. SpecError for anything else."""
    found = [value] if name == "versions" and isinstance(value, str) else value
    if not isinstance(found, list) or not found:
        raise SpecError(f"{where}: {name} must be a list of texts. Got {value!r}.")
    texts = tuple(_text(where, f"each of {name}", item) for item in found)
    twice = [text for index, text in enumerate(texts) if text in texts[:index]]
    if twice:
        raise SpecError(f"{where}: {name} holds {twice[0]!r} twice")
    return texts


def _members(where: str, name: str, given: tuple[str, ...], known: Collection[str], hint: str) -> tuple[str, ...]:
    for text in given:
        if text not in known:
            raise SpecError(f"{where}: {name} holds {text!r}, which is not known ({hint})")
    return given


def _match(where: str, name: str, text: str, pattern: re.Pattern[str], rule: str) -> str:
    if not pattern.fullmatch(text):
        raise SpecError(f"{where}: {name} must be {rule}. Got {text!r}.")
    return text


def _definition(where: str, text: str) -> str:
    """The rule of this id, in words; or a sentence, as somebody's own table may have."""
    if text in RULES:
        return RULES[text].plain
    if " " not in text:
        raise SpecError(
            f"{where}: definition must be the id of a rule ({', '.join(RULES)}) or a sentence. Got {text!r}."
        )
    return text


def _link(where: str, text: str) -> None:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or " " in text:
        raise SpecError(f"{where}: link must be a URL, https://... Got {text!r}.")


def _requirement(where: str, text: str) -> str:
    rule = "a package and the versions in which it happens, such as torch>=2.0,<3"
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise SpecError(f"{where}: versions must be {rule}. Got {text!r}.") from error
    if requirement.extras or requirement.url or requirement.marker or not requirement.specifier:
        raise SpecError(f"{where}: versions must be {rule}, and nothing else. Got {text!r}.")
    return text


@cache
def _case_ids() -> frozenset[str]:
    from conformance.cases.table import select_asked

    return frozenset(asked.id for asked in select_asked(()))
