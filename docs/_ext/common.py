"""What the directives share: the names of the frameworks, links, escaped text and tables in Markdown."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

FRAMEWORKS = {"torch": "PyTorch", "tf": "TensorFlow", "jax": "JAX", "mxnet": "MXNet"}
"""In the order in which they stand on the pages."""

DIALECTS = {"numpy": "NumPy", **FRAMEWORKS}
"""What the plain edition and the lessons are written in."""


def linked(text: str) -> str:
    """Markdown in which issues of GitHub are links.

    >>> linked("seen in pytorch/pytorch#41508")
    'seen in [pytorch#41508](https://github.com/pytorch/pytorch/issues/41508)'
    """
    return re.sub(r"\b([\w.-]+)/([\w.-]+)#(\d+)", r"[\2#\3](https://github.com/\1/\2/issues/\3)", text)


def escaped(text: str) -> str:
    r"""Text as Markdown: nothing of it is markup, but what stands in backticks is code.

    >>> print(escaped("0 * NaN of `mask` in W_q [0, 0]"))
    0 \* NaN of `mask` in W\_q \[0, 0\]
    """
    return re.sub(r"(`[^`]*`)|([\\`*_\[\]<>{}$|~#])", lambda found: found[1] or f"\\{found[2]}", text)


def short(link: str) -> str:
    """What a link is called: "pytorch#41508" for an issue or a pull request, else its host.

    >>> short("https://github.com/pytorch/pytorch/issues/41508"), short("https://docs.jax.dev/en/latest/x.html")
    ('pytorch#41508', 'docs.jax.dev')
    """
    found = re.fullmatch(r"https://github\.com/[\w.-]+/([\w.-]+)/(?:issues|pull)/(\d+).*", link)
    return f"{found[1]}#{found[2]}" if found else link.split("/")[2]


def tabs(contents: Mapping[str, str]) -> str:
    """A set of tabs, in step over all pages: name of a framework or dialect -> what its tab holds, in Markdown."""
    parts = [f":::{{tab-item}} {DIALECTS[name]}\n:sync: {name}\n{text}\n:::" for name, text in contents.items()]
    return "\n".join(["::::{tab-set}", *parts, "::::"])


def table(names: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Collection[str] = ()) -> str:
    """A table in Markdown; the columns named in `numbers` stand at the right.

    >>> print(table(["", "tried"], [["masks", "8"]], numbers=["tried"]))
    | | tried |
    |---|---:|
    | masks | 8 |
    """
    marks = ["---:" if name in numbers else "---" for name in names]
    head = f"| {' | '.join(names)} |".replace("|  |", "| |", 1)
    return "\n".join([head, f"|{'|'.join(marks)}|", *(f"| {' | '.join(row)} |" for row in rows)])
