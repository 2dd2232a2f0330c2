"""`layer-phrases`: what each framework's own attention says, side by side, and how parameters move between any two.

Code and words are those of `mha.phrases`; its measured.json has what came out when the code ran.
"""

import re
from collections.abc import Iterator
from html import escape

from mha.phrases.native import Native
from mha.phrases.said import CONCEPTS, Making
from mha.phrases.table import NATIVES, carried, common, warnings_of
from mha.phrases.text import lines_of, recorded, verdict, verdict_of, words_of

OPEN = 2
"""Warnings that stand open; the others are folded."""


def cell(natives: list[Native], concept: str) -> str:
    """What one layer says of a concept, or several that say the same."""
    first = natives[0]
    names = ", ".join(broken(native.title) for native in natives)
    parts = [f'<article class="phrase" data-of="{" ".join(native.id for native in natives)}"><h4>{names}</h4>']
    words = words_of(first, concept)
    if words:
        parts.append(f"<p>{escape(words)}</p>")
    lines = lines_of(first, concept)
    if lines:
        parts.append(block(lines))
    parts.append(f'<p class="verdict">{verdict_of(first, concept)}</p>')
    links = [
        f'<li>{escape(entry.summary)} <a href="traps.html#{entry.id}">Why</a></li>'
        for entry in warnings_of(first, concept)
    ]
    if links:
        parts.append(f"<ul>{''.join(links[:OPEN])}</ul>")
    if links[OPEN:]:
        rest = f"<ul>{''.join(links[OPEN:])}</ul>"
        parts.append(f"<details><summary>{len(links) - OPEN} more</summary>{rest}</details>")
    return "".join(part for part in parts if part != '<p class="verdict"></p>') + "</article>"


def grouped(concept: str) -> Iterator[list[Native]]:
    """The layers, those together that say the same of a concept."""
    found: dict[tuple[object, ...], list[Native]] = {}
    for native in NATIVES.values():
        warned = tuple(entry.id for entry in warnings_of(native, concept))
        said = words_of(native, concept), tuple(lines_of(native, concept)), warned
        found.setdefault((*said, verdict_of(native, concept)), []).append(native)
    yield from found.values()


def block(lines: list[str]) -> str:
    """Code whose long lines break where no name is cut."""
    text = "".join(f'<span class="line">{broken(line)}\n</span>' for line in lines)
    return f'<div class="highlight"><pre>{text}</pre></div>'


def broken(text: str) -> str:
    """HTML of a text that may break behind a dot or a bracket.

    >>> broken("mx.nd(a)")
    'mx.<wbr>nd(<wbr>a)'
    """
    return re.sub(r"([.(\[])(?=[A-Za-z_'])", r"\1<wbr>", escape(text, quote=False))


def carried_by() -> Iterator[str]:
    """How parameters move from one layer to another, folded; pairs whose code is the same stand together."""
    found: dict[tuple[str, ...], list[tuple[Native, Native]]] = {}
    for old in NATIVES.values():
        for new in NATIVES.values():
            if new is not old:
                judged = verdict({"float32": recorded()["pairs"][old.id][new.id]})
                found.setdefault((judged, *carried(old, new, common(old, new, Making()))), []).append((old, new))
    for (judged, *lines), pairs in found.items():
        names = "; ".join(f"{broken(old.title)} → {broken(new.title)}" for old, new in pairs)
        ids = " ".join(f"{old.id}/{new.id}" for old, new in pairs)
        yield f'<details class="carry" data-pairs="{ids}"><summary>{names}: {judged}</summary>{block(lines)}</details>'


def raw(html: str) -> str:
    """HTML as a part of a page in Markdown."""
    return f"`````{{raw}} html\n{html}\n`````\n"


def markdown() -> str:
    """A section for each concept, and every pair."""
    releases = ", ".join(f"{name} {release}" for name, release in recorded()["releases"].items())
    parts: list[str] = []
    for concept, heading in CONCEPTS.items():
        cells = "".join(cell(natives, concept) for natives in grouped(concept))
        parts += [f"### {heading}\n", raw(f'<div class="phrases">{cells}</div>')]
        if concept == "parameters":
            parts += [
                "From a layer `old` to a layer `new`, both as they are made above, with `import numpy as np`. Each "
                "was run: every parameter arrives exact to the bit, and the new layer, called with padding and causal, "
                "is then held against the definition in float32.\n",
                raw("".join(carried_by())),
            ]
    return "\n".join([*parts, f"Run with {releases}.\n"])
