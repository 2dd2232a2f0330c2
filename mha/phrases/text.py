"""The phrase book in a terminal."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from conformance.deviations.entry import Deviation
from mha.phrases.native import Native
from mha.phrases.said import CONCEPTS, STATEMENTS, Making
from mha.phrases.table import NATIVES, carried, common, warnings_of
from mha_core.errors import SpecError, meant

MEASURED = Path(__file__).with_name("measured.json")
"""What came out when the code ran: `python -m tests.mha.phrases.measure` writes it."""

AS_CALLED = ("made", "numbers")
"""Concepts of which a plain call says what there is to say."""

ARRAYS = (
    "queries (B, Lq, E), keys and values (B, Lk, E); valid (B, Lk) and allowed (Lq, Lk) are True where a query may "
    "attend; added (Lq, Lk) are numbers; E = H * d."
)
"""What the variables of all code are."""


@cache
def recorded() -> dict[str, Any]:
    """Return the content of measured.json: the last measured errors."""
    found: dict[str, Any] = json.loads(MEASURED.read_text("utf-8"))
    return found


def verdict(found: Mapping[str, Sequence[float]]) -> str:
    """Return in words how far a layer is from the reference. `found`: dtype -> (error / allowed error, error).

    >>> verdict({"float64": [4e5, 1.8e-8], "float32": [0.04, 4e-7]})
    'equal in float32, off by 2e-08 in float64'
    """
    equal = [dtype for dtype, (ratio, _) in found.items() if ratio <= 1]
    parts = [f"equal in {' and '.join(equal)}"] if equal else []
    return ", ".join(parts + [f"off by {found[dtype][1]:.0e} in {dtype}" for dtype in found if dtype not in equal])


def verdict_of(native: Native, concept: str) -> str:
    """Return in words how far the result of a concept's code is from the reference; "" if this was not measured."""
    found = verdict(recorded()["said"][native.id].get("called" if concept in AS_CALLED else concept, {}))
    return f"where it is off: {found}" if concept == "dropout" and found else found


def concepts_of(asked: Sequence[str]) -> list[str]:
    """Return concepts (topics of the phrase book) by their names, or by words in their headings. Return all for [].

    Raises:
        SpecError: there is no such concept.

    >>> concepts_of(["padding"]), concepts_of(["Averaged over the heads"])
    (['padding'], ['mean'])
    >>> concepts_of(["mask"])
    ['allowed', 'added']
    """
    found: set[str] = set()
    for name in asked:
        words = name.lower()
        named = {words} & CONCEPTS.keys() or {one for one, heading in CONCEPTS.items() if words in heading.lower()}
        if not named:
            headings = ", ".join(f"{one} ({heading})" for one, heading in CONCEPTS.items())
            raise SpecError(f"--about {name!r} is no concept{meant(words, CONCEPTS) or f' (there are: {headings})'}")
        found |= named
    return [name for name in CONCEPTS if name in found or not asked]


def lines_of(native: Native, concept: str) -> list[str]:
    """Return lines of code that show a concept, such as "padding", in a framework's attention; [] if there are none."""
    if concept in native.lacks or concept in ("parameters", "numbers"):
        return []
    if concept == "state":
        return list(native.state)
    making, calling = STATEMENTS[concept]
    if concept == "made":
        return [*native.imports, *native.make(making)]
    lines = native.call(making, calling)
    return [*native.make(making), *lines] if making != Making() else lines


def words_of(native: Native, concept: str) -> str:
    """Return the text that is printed with the code for a concept, such as "padding"; "" for no text.

    If the framework lacks the concept, the text says what is missing.
    """
    lack = native.lacks.get(concept)
    return lack.words[0].upper() + lack.words[1:] if lack else native.words.get(concept, "")


def listing() -> Iterator[str]:
    """Yield every native, and its short names."""
    width = max(map(len, NATIVES))
    for native in NATIVES.values():
        names = ", ".join(name for name in native.others if name.islower() and "." not in name)
        yield f"{native.id:<{width}}  {native.path}{f' ({names})' if names else ''}"


def pair(old: Native, new: Native, asked: Sequence[str]) -> Iterator[str]:
    """Yield lines that show the concepts `asked` (if empty: all) in two frameworks, and code that moves parameters."""
    concepts = concepts_of(asked)
    yield f"{old.path} -> {new.path}"
    yield f"Arrays: {ARRAYS}"
    for concept in concepts:
        yield ""
        yield CONCEPTS[concept].upper()
        for native in (old, new):
            yield from statement(native, concept)
        if concept == "parameters":
            yield from parameters(old, new)


def statement(native: Native, concept: str) -> Iterator[str]:
    """Yield lines on one concept of one native."""
    yield f"  {native.title}"
    words = words_of(native, concept)
    if words:
        yield f"    {words}"
    for line in lines_of(native, concept):
        yield f"        {line}"
    found = verdict_of(native, concept)
    if found:
        yield f"    Run on shared weights: {found}."
    yield from traps(warnings_of(native, concept), "    ")


def parameters(old: Native, new: Native) -> Iterator[str]:
    """Yield the lines of code that move parameters from `old` to `new`, and a line on the resulting layer's error."""
    yield f"  From {old.title} (old) to {new.title} (new):"
    for line in carried(old, new, common(old, new, Making())):
        yield f"        {line}"
    if old is not new:
        found = verdict({"float32": recorded()["pairs"][old.id][new.id]})
        yield f"    Every parameter the same to the bit; then called with padding, causal: {found}."


def traps(entries: Sequence[Deviation], margin: str) -> Iterator[str]:
    """Yield a line, indented by `margin`, for each known deviation, except those of versions that are not installed."""
    for entry in entries:
        if not entry.why_not_here().startswith("other version"):
            yield f"{margin}! {entry.summary} ({entry.id})"
