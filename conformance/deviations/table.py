"""A table of deviations in TOML, checked field by field."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from conformance.deviations.entry import EVERY_GRADIENT, EVERYTHING, Deviation
from mha_core import STAGES, SpecError
from mha_core.call.call import LEAVES
from mha_core.dtypes import DTYPES
from mha_core.files.outside import parse_toml
from mha_core.reference.rules import RULES
from mha_core.stages import GRADIENT
from mha_core.weights import NAMES

EVERY = ("id", "subject", "summary", "definition", "reason", "link", "versions")
"""Fields that every entry has."""

PLACES = ("cases", "dtypes", "arrays")
"""Fields for the cases that show it; an entry that no case can show has none of them."""

GRADIENTS = tuple(f"{GRADIENT}{name}" for name in (*LEAVES, *NAMES))
"""Every gradient that a Trace can have, as `Trace.arrays` names it."""


def read(text: str, *, source: str) -> tuple[Deviation, ...]:
    """Return the deviations in a TOML text. SpecError if an entry is wrong; messages name its file `source`.

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
    """Return the deviation that a TOML table describes.

    Args:
        number: the table's position in the file, from 1, for messages.
        source: the name of the file, for messages.

    Raises:
        SpecError: a field is missing, unknown, or wrong; the message names file, entry and field.
    """
    identifier = table.get("id")
    where = f"{source}: entry {number}" + (f" ({identifier!r})" if isinstance(identifier, str) else "")
    for name in table:
        if name not in FIELDS:
            raise SpecError(f"{where} has the unknown field {name!r} (known: {', '.join(FIELDS)})")
    for name in EVERY:
        if name not in table:
            raise SpecError(f"{where} lacks {name!r}, which every entry has")
    places = [name for name in PLACES if name in table]
    for name in ("cases", "arrays") if places else ():
        if name not in table:
            raise SpecError(f"{where} has {places[0]!r} and lacks {name!r}; it must have cases and arrays, or neither")
    return Deviation(**{name: FIELDS[name](f"{where}: {name}", table[name]) for name in FIELDS if name in table})


# One function a field: (the field in words, its value in TOML) -> its value in the entry; SpecError for a wrong one.


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{field} must be a text. Got {value!r}.")
    return value.strip()


def _texts(field: str, value: Any) -> tuple[str, ...]:
    """A list of texts, none twice."""
    if not isinstance(value, list) or not value:
        raise SpecError(f"{field} must be a list of texts. Got {value!r}.")
    where, _, name = field.rpartition(": ")
    texts = tuple(_text(f"{where}: each of {name}", item) for item in value)
    twice = [text for index, text in enumerate(texts) if text in texts[:index]]
    if twice:
        raise SpecError(f"{field} holds {twice[0]!r} twice")
    return texts


def _matching(pattern: str, rule: str) -> Callable[[str, Any], str]:
    """A text that a pattern matches whole; `rule` says so in words."""

    def checked(field: str, value: Any) -> str:
        text = _text(field, value)
        if not re.fullmatch(pattern, text):
            raise SpecError(f"{field} must be {rule}. Got {text!r}.")
        return text

    return checked


def _some_of(known: Callable[[], Collection[str]], hint: str) -> Callable[[str, Any], tuple[str, ...]]:
    """Some of what `known` gives; `hint` says in words what that is."""

    def checked(field: str, value: Any) -> tuple[str, ...]:
        texts = _texts(field, value)
        for text in texts:
            if text not in known():
                raise SpecError(f"{field} holds {text!r}, which is not known ({hint})")
        return texts

    return checked


def _definition(field: str, value: Any) -> str:
    """The rule of this id, in words; or a sentence, as somebody's own table may have."""
    text = _text(field, value)
    if text in RULES:
        return RULES[text].plain
    if " " not in text:
        raise SpecError(f"{field} must be the id of a rule ({', '.join(RULES)}) or a sentence. Got {text!r}.")
    return text


def _link(field: str, value: Any) -> str:
    text = _text(field, value)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or " " in text:
        raise SpecError(f"{field} must be a URL, https://... Got {text!r}.")
    return text


def _versions(field: str, value: Any) -> tuple[str, ...]:
    """Packages with their versions; one of them may be a text alone."""
    rule = "a package and the versions in which it happens, such as torch>=2.0,<3"
    from packaging.requirements import InvalidRequirement, Requirement

    texts = _texts(field, [value] if isinstance(value, str) else value)
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise SpecError(f"{field} must be {rule}. Got {text!r}.") from error
        if requirement.extras or requirement.url or requirement.marker or not requirement.specifier:
            raise SpecError(f"{field} must be {rule}, and nothing else. Got {text!r}.")
    return texts


@cache
def _case_ids() -> frozenset[str]:
    from conformance.cases.table import select_asked

    return frozenset(asked.id for asked in select_asked(()))


_SPEC = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*"
_ARRAYS = (*STAGES, *GRADIENTS, EVERYTHING, EVERY_GRADIENT)

FIELDS: Mapping[str, Callable[[str, Any], Any]] = {
    "id": _matching(r"[a-z0-9]+(-[a-z0-9]+)*", "kebab-case, such as masked-row-is-nan"),
    "subject": _matching(_SPEC, "MODULE:NAME"),
    "summary": _text,
    "definition": _definition,
    "reason": _text,
    "link": _link,
    "versions": _versions,
    "cases": _some_of(_case_ids, "`mha check --list` lists them"),
    "dtypes": _some_of(lambda: DTYPES, ", ".join(DTYPES)),
    "arrays": _some_of(lambda: _ARRAYS, "stages, gradients.NAME, gradients.*, or *"),
    "only_where": _text,
}
"""Every field of an entry, and what checks it."""
