"""Parameters from one layer's shapes to another's, as the one line of NumPy that does it.

A layer says which axes its arrays have: "(h d) i" is a matrix whose rows are the heads, one below the other; "i h d" a
kernel with an axis for the heads. h, g: heads of queries, of keys; d: width of a head; i, o: width of input and output.
"""

import re
from collections.abc import Mapping

from mha.phrases.said import Making, times

CANONICAL: Mapping[str, str] = {
    "q": "(h d) i",
    "k": "(g d) i",
    "v": "(g d) i",
    "o": "o (h d)",
    "q_bias": "(h d)",
    "k_bias": "(g d)",
    "v_bias": "(g d)",
    "o_bias": "o",
}
"""The axes of the definition's weights (docs/layers.md), by the names that arrays have on their way."""

NAMES: Mapping[str, str] = {
    "q": "q_proj.weight",
    "k": "k_proj.weight",
    "v": "v_proj.weight",
    "o": "out_proj.weight",
    "q_bias": "q_proj.bias",
    "k_bias": "k_proj.bias",
    "v_bias": "v_proj.bias",
    "o_bias": "out_proj.bias",
}
"""Name on the way -> name in the definition."""


def names(making: Making) -> list[str]:
    """Return the arrays that such a layer has."""
    return [name for name in CANONICAL if making.bias or not name.endswith("_bias")]


def move(old: str, new: str, making: Making) -> str:
    """Return the NumPy methods, as code, that turn an array's old axes into the new; "" if they are the same.

    >>> move("(h d) i", "i h d", Making()), move("i h d", "(h d) i", Making())
    ('.T.reshape(E, H, d)', '.reshape(E, E).T')
    >>> move("(h d)", "h d", Making("64", "4", "16"))
    '.reshape(4, 16)'
    >>> move("h d o", "h d o", Making()), move("(h d) i", "h i d", Making())
    ('', '.reshape(H, d, E).transpose(0, 2, 1)')
    """
    before, after = groups(old), groups(new)
    blocks = _blocks(before, after)
    order = sorted(range(len(blocks)), key=lambda index: after_place(blocks[index], after))
    arranged = [blocks[index] for index in order]
    turned = order != list(range(len(blocks)))
    if not turned:
        return "" if before == after else _reshape(after, making)
    first = "" if before == blocks else _reshape(blocks, making)
    turn = ".T" if order == list(range(len(blocks)))[::-1] else f".transpose({', '.join(map(str, order))})"
    return first + turn + ("" if arranged == after else _reshape(after, making))


def moves(old: Mapping[str, str], new: Mapping[str, str], making: Making) -> list[str]:
    """Return lines of code that change the axes of the arrays q, k, ...; arrays with the same change share a line.

    >>> for line in moves(CANONICAL, {**CANONICAL, "q": "i h d", "k": "i g d", "o": "h d o"}, Making()):
    ...     print(line)
    q, k = (x.T.reshape(E, H, d) for x in (q, k))
    o = o.T.reshape(H, d, E)
    """
    alike: dict[str, list[str]] = {}
    for name in names(making):
        alike.setdefault(move(old[name], new[name], making), []).append(name)
    lines = []
    for change, which in alike.items():
        if change and len(which) == 1:
            lines.append(f"{which[0]} = {which[0]}{change}")
        elif change:
            lines.append(f"{', '.join(which)} = (x{change} for x in ({', '.join(which)}))")
    return lines


def groups(axes: str) -> list[list[str]]:
    """Return the axes of an array, each as a list of the axes that it joins.

    >>> groups("(h d) i")
    [['h', 'd'], ['i']]
    """
    return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\w+", axes)]


def after_place(block: list[str], after: list[list[str]]) -> int:
    """Return where a block begins in the new array."""
    return [axis for group in after for axis in group].index(block[0])


def _blocks(before: list[list[str]], after: list[list[str]]) -> list[list[str]]:
    """The old axes, those joined that follow each other in the new array too."""
    order = [axis for group in after for axis in group]
    blocks: list[list[str]] = []
    for axis in (axis for group in before for axis in group):
        if blocks and order.index(axis) == order.index(blocks[-1][-1]) + 1:
            blocks[-1].append(axis)
        else:
            blocks.append([axis])
    return blocks


def _reshape(shape: list[list[str]], making: Making) -> str:
    return f".reshape({', '.join(_size(group, making) for group in shape)})"


def _size(group: list[str], making: Making) -> str:
    """The length of an axis as text."""
    whole = {"h d": making.width, "g d": making.kv_width}
    sizes = {"h": making.heads, "g": making.groups, "d": making.head_width, "i": making.width, "o": making.width}
    if " ".join(group) in whole:
        return whole[" ".join(group)]
    text = sizes[group[0]]
    for axis in group[1:]:
        text = times(text, sizes[axis])
    return text
