"""Sizes: how many bytes a page takes, known before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from mha.view.plan import EXACT_UP_TO, Part
from mha_core import SpecError

MOST_BYTES = 32 * 2**20
"""Of a page: browsers take several times as much memory."""

MOST_HEADS = 2048
"""Most cells of the grid, each a button with a name."""

FRAME = 48_000
"""Bytes of the page without any head: its text, style and script."""

CELL = 1_100
"""Bytes of one head's cell in the grid, and of its measures."""

LINE = 1_600
"""Bytes of one layer's lines: its name, its sizes, how near it is to what was recorded."""

TOKEN = 24
"""Bytes of one token's name, on average."""


def block(part: Part) -> int:
    """Return the side of a block of queries and keys that is shown as one number; 1 if weights are exact."""
    return 1 if part.is_exact else ceil(max(part.query_len, part.key_len) / EXACT_UP_TO)


def data_bytes(part: Part, *, has_other: bool) -> int:
    """Return how many bytes the numbers of one part take, for each item of the batch.

    An exact weight takes two bytes, a byte more for its difference from another, and a bit for its mask; each channel
    of a query or key takes two bytes. Otherwise each block takes a byte.
    """
    if not part.is_exact:
        side = block(part)
        return len(part.heads) * ceil(part.query_len / side) * ceil(part.key_len / side)
    places = part.query_len * part.key_len
    channels = len(part.heads) * part.query_len + len(part.kv_heads) * part.key_len
    return len(part.heads) * (places * (3 if has_other else 2) + ceil(places / 8)) + 2 * channels * part.config.head_dim


def page_bytes(parts: Sequence[Part], *, has_other: bool) -> int:
    """Return the most bytes that the page of these parts can have; compression makes it smaller."""
    total = FRAME
    for part in parts:
        lengths = (part.query_len + part.key_len) * TOKEN
        total += part.batch * (data_bytes(part, has_other=has_other) * 4 // 3 + 4 + CELL * len(part.heads) + lengths)
        total += LINE
    return total


def check_size(parts: Sequence[Part], *, has_other: bool) -> int:
    """Return the result of `page_bytes`. SpecError if the page is too large; the message says how to choose less."""
    first = [part for part in parts if part.number == 0]
    heads = sum(len(part.heads) for part in first)
    layers = f"{len(first)} layers with {heads} heads"
    choose = "choose some with --layers (names or positions) and --heads"
    if heads > MOST_HEADS:
        raise SpecError(f"{layers} are too many for one page, which shows at most {MOST_HEADS} heads: {choose}")
    size = page_bytes(parts, has_other=has_other)
    if size > MOST_BYTES:
        largest = max(parts, key=lambda part: part.query_len * part.key_len)
        raise SpecError(
            f"the page would take up to {size / 1e6:.0f} MB for {layers}, up to {largest.query_len} queries x "
            f"{largest.key_len} keys; at most {MOST_BYTES / 1e6:.0f} MB: {choose}"
        )
    return size
