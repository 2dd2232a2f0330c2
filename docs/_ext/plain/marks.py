"""Python as HTML, with marks where it differs from another dialect's."""

from __future__ import annotations

from difflib import SequenceMatcher
from html import escape

from pygments.lexers.python import PythonLexer
from pygments.token import STANDARD_TYPES, Comment, _TokenType

Token = tuple[_TokenType, str]


def tokens(source: str) -> list[Token]:
    """The tokens of Pygments; joined they are the source."""
    return list(PythonLexer(stripnl=False, ensurenl=False).get_tokens(source))


def differing(source: str, base: str) -> set[int]:
    """Which tokens of `source` are not those of `base`; blanks and comments don't count.

    >>> [tokens("a = np.where(b)")[i][1] for i in sorted(differing("a = np.where(b)", "a = tf.where(b)"))]
    ['np']
    """
    places = _significant(source)
    ours, theirs = ([found[i][1] for i in _significant(text)] for text in (source, base) for found in [tokens(text)])
    matcher = SequenceMatcher(None, theirs, ours, autojunk=False)
    return {places[i] for kind, _, _, start, end in matcher.get_opcodes() if kind != "equal" for i in range(start, end)}


def to_html(source: str, base: str | None = None) -> str:
    """The source in Pygments' classes, each line an element; what differs from `base` stands in `<mark>`."""
    found, marked = tokens(source), set() if base is None else differing(source, base)
    parts, inside = [], False
    for index, (kind, text) in enumerate(found):
        # A blank between two marked tokens is marked with them.
        blank = not text.strip() and "\n" not in text
        mark = index in marked or (blank and inside and index + 1 in marked)
        if mark is not inside:
            parts.append("<mark>" if mark else "</mark>")
            inside = mark
        name = STANDARD_TYPES.get(kind, "")
        parts.append(f'<span class="{name}">{escape(text)}</span>' if name and text.strip() else escape(text))
    lines = ("".join(parts) + ("</mark>" if inside else "")).split("\n")
    return "".join(f'<span class="line">{line}\n</span>' for line in lines)


def _significant(source: str) -> list[int]:
    return [i for i, (kind, text) in enumerate(tokens(source)) if text.strip() and kind not in Comment]
