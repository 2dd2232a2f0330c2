"""Python as HTML, with marks where it differs from other dialects."""

from collections.abc import Mapping
from difflib import SequenceMatcher
from html import escape

from pygments.lexers.python import PythonLexer
from pygments.token import STANDARD_TYPES, Comment, _TokenType

Token = tuple[_TokenType, str]

BREAKS = ("(", "[", ".", ",", "=")
"""Behind these a long line may be broken."""


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


def to_html(source: str, others: Mapping[str, str]) -> str:
    """The source in Pygments' classes, each line an element, which may be broken between names, never inside one.

    Args:
        source: Python.
        others: name -> the same in another dialect. What differs from some of them stands in `<mark>`, whose classes
            are `from-NAME` of those.
    """
    found = tokens(source)
    marked = {name: differing(source, other) for name, other in others.items()}
    parts: list[str] = []
    before: tuple[str, ...] = ()
    for index, (kind, text) in enumerate(found):
        # A blank between two marked tokens is marked with them.
        at = index if text.strip() or "\n" in text else index + 1
        names = tuple(name for name, places in marked.items() if at in places and (at == index or name in before))
        if names != before:
            parts.append("</mark>" if before else "")
            parts.append(f'<mark class="{" ".join(f"from-{name}" for name in names)}">' if names else "")
            before = names
        css = STANDARD_TYPES.get(kind, "")
        parts.append(f'<span class="{css}">{escape(text)}</span>' if css and text.strip() else escape(text))
        if text.endswith(BREAKS):
            parts.append("<wbr>")
    lines = ("".join(parts) + ("</mark>" if before else "")).split("\n")
    return "".join(f'<span class="line">{line}\n</span>' for line in lines)


def _significant(source: str) -> list[int]:
    return [i for i, (kind, text) in enumerate(tokens(source)) if text.strip() and kind not in Comment]
