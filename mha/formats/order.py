"""The order of a model's layers: that of the file, except that numbers in names are ordered by size.

Files that sort their names have layer 10 before layer 2.
"""

import re
from collections.abc import Iterable

TOKEN = re.compile(r"\d+|\D+")


def in_order(prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes of layers in the order of the model: those that differ in a number are sorted by it.

    Args:
        prefixes: the prefixes in the file's order. Prefixes that differ in a word keep this order.

    >>> in_order(["layer.1.self", "layer.1.cross", "layer.10.self", "layer.2.self", "head"])
    ['layer.1.self', 'layer.1.cross', 'layer.2.self', 'layer.10.self', 'head']
    """
    ranks: dict[tuple[str, ...], int] = {}

    def key(prefix: str) -> list[tuple[int, int]]:
        path: tuple[str, ...] = ()
        places = []
        for token in TOKEN.findall(prefix):
            is_number = token.isdecimal()
            path = (*path, "#" if is_number else token)
            rank = ranks.setdefault(path, len(ranks))
            # Numbers of one place are together, as they first were, and among themselves by size.
            places.append((rank, int(token) if is_number and len(token) < 19 else 0))
        return places

    return sorted(prefixes, key=key)
