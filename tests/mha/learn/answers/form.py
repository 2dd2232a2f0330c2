"""What an answer is, and how the tables of answers are written."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import dedent, indent


@dataclass(frozen=True)
class Answer:
    """What a learner may hand in for an exercise: the whole file, and what is wrong with it in a learner's words."""

    exercise: str
    name: str
    source: str
    mistake: str
    right: bool = False


def half(name: str) -> int:
    """1 or 2, by a hash of the name of an answer: what is said of many answers is to hold in each half.

    >>> half("softmax/mask-forgotten"), half("softmax/mask-inverted")
    (1, 2)
    """
    return 1 + hashlib.sha256(name.encode()).digest()[0] % 2


_HEAD = re.compile(r"^(?P<right>right )?(?P<slug>[a-z0-9-]+): (?P<mistake>.+)$")


def _blocks(text: str) -> list[tuple[re.Match[str], str]]:
    """Each line at the margin, `slug: mistake` or `right slug: remark`, and the lines indented below it."""
    found = []
    for block in re.split(r"^(?=\S)", text.strip("\n"), flags=re.MULTILINE):
        if block.strip():
            line, _, body = block.partition("\n")
            head = _HEAD.match(line)
            assert head, f"not 'slug: mistake': {line!r}"
            found.append((head, dedent(body).strip("\n") + "\n"))
    return found


def _answer(exercise: str, head: re.Match[str], source: str, first: str = "") -> Answer:
    """An answer; `first` is the exercise in its name, which its half hangs on, where that has been renamed."""
    right = head["right"] is not None
    return Answer(exercise, f"{first or exercise}/{head['slug']}", source, head["mistake"], right)


def sections(text: str) -> list[tuple[str, str]]:
    """The title and the text of each section: a line `== title`, and what stands below it."""
    parts = re.split(r"^== (.+)\n", text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def bodies(
    exercise: str, signature: str, text: str, imports: str = "import numpy as np", *, first: str = ""
) -> list[Answer]:
    """The answers that are bodies of the function `signature`."""
    start = f"{imports}\n\n\ndef {signature}:\n"
    return [_answer(exercise, head, start + indent(body, "    "), first) for head, body in _blocks(text)]


def functions(text: str, *, first: Mapping[str, str] = {}, short: Mapping[str, str] = {}) -> list[Answer]:
    """The bodies below each signature; `first` as above, by exercise; `short`: a word -> the lines it stands for."""
    for word, lines in short.items():
        text = text.replace(word, lines)
    named = [(signature.partition("(")[0].replace("_", "-"), signature, part) for signature, part in sections(text)]
    return [one for name, *given in named for one in bodies(name, *given, first=first.get(name, ""))]


def files(exercise: str, text: str, *, first: str = "") -> list[Answer]:
    """The answers that are whole files."""
    return [_answer(exercise, head, body, first) for head, body in _blocks(text)]


def edits(exercise: str, whole: str, text: str) -> list[Answer]:
    """The answers that differ from `whole` in some lines: below each head, `old ==> new`, one or more.

    Raises:
        AssertionError: a line is not an edit, or its old text does not stand in the file.
    """
    found = []
    for head, body in _blocks(text):
        source = whole
        for line in body.splitlines():
            old, arrow, new = (part.strip() for part in line.partition("==>"))
            assert arrow, f"{exercise}/{head['slug']}: {line!r}"
            assert old in source, f"{exercise}/{head['slug']}: {line!r}"
            source = source.replace(old, new)
        found.append(_answer(exercise, head, source))
    return found
