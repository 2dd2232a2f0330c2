"""The chunked mask done wrong: where chunks begin and end, what is counted, and how other sources join."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.rows import Steps, Table, after, keys_of, part, require
from mha_core.parts.chunked_mask import ChunkedMask
from mha_core.reference.state import State

BEGINS = {"chunked_mask": ("chunk-",)}


has_chunks, _ = part("chunked_mask", ChunkedMask)


def _without_chunks(state: State, **sources: object) -> NDArray:
    """The keys that the other sources allow; `sources` are others in their place."""
    return keys_of(state, state.inputs.mask, chunks=False, **sources)


class _Places:
    """Where the queries and keys of a call stand, each (1 or B, 1, Lq or 1, Lk or 1), and its chunks."""

    def __init__(self, state: State) -> None:
        mask = state.inputs.mask
        self.start, offset = (np.asarray(x).reshape(-1, 1, 1, 1) for x in (mask.chunk_start, mask.query_offset))
        self.row = np.arange(state.sizes.query_len)[:, None]
        self.query, self.key = offset + self.row, np.arange(state.sizes.key_len)
        self.size, self.past = int(state.sizes.chunk_size or 0), state.sizes.past_len

    def chunk(self, position: NDArray, start: NDArray | int | None = None, size: int = 0) -> NDArray:
        """The number of the chunk that each position is in."""
        return (position - (self.start if start is None else start)) // (size or self.size)

    def same(self, start: NDArray | int | None = None, size: int = 0) -> NDArray:
        """Whether query and key are in one chunk, if chunks begin or end elsewhere."""
        return self.chunk(self.query, start, size) == self.chunk(self.key, start, size)


def _chunks(rule: Callable[[_Places], NDArray]) -> Steps:
    """`rule(places)`, bool (1 or B, 1, Lq, Lk), in place of the rule of chunks."""
    return after("allowed", lambda s, right: _without_chunks(s) & rule(_Places(s)), has_chunks)


def _other_sources(**sources: object) -> Steps:
    """The right chunks, beside other sources."""
    return after("allowed", lambda s, right: _without_chunks(s, **sources) & _Places(s).same(), has_chunks)


def _shorter(places: _Places) -> NDArray:
    require(places.size > 1, "a chunk of one position can't be shorter")
    return places.same(size=places.size - 1)


def _towards_0(places: _Places) -> NDArray:
    number = [np.trunc((x - places.start) / places.size) for x in (places.query, places.key)]
    return np.asarray(number[0] == number[1])


_row = Table("weights", "Key j is allowed iff (j - chunk_start) // size == (position - chunk_start) // size.")
_count = Table(
    "weights", "Query i stands at query_offset + i, keys count from the past; chunk_start is each item's own."
)
_join = Table("weights", "Chunks join causal, window and the other sources by AND.")

CHUNKS = (
    _row("chunk-ignored", "Queries attend beyond their chunk.", _chunks(lambda p: np.ones(1, dtype=bool))),
    _row(
        "chunk-as-window",
        "Queries attend to the last `size` keys, as in a window, whichever chunk these are in.",
        _chunks(lambda p: (p.key > p.query - p.size) & (p.key < p.query + p.size)),
    ),
    _row("chunk-one-longer", "Chunks are one position longer.", _chunks(lambda p: p.same(size=p.size + 1))),
    _row("chunk-one-shorter", "Chunks are one position shorter.", _chunks(_shorter)),
    _row("chunk-one-early", "Chunks begin one position early.", _chunks(lambda p: p.same(start=p.start - 1))),
    _row(
        "chunk-of-next-position",
        "A query attends to the chunk of the position behind it.",
        _chunks(lambda p: p.chunk(p.query + 1) == p.chunk(p.key)),
    ),
    _row(
        "chunk-before-too",
        "Queries attend to the chunk before their own as well.",
        _chunks(lambda p: (p.chunk(p.key) == p.chunk(p.query)) | (p.chunk(p.key) == p.chunk(p.query) - 1)),
    ),
    _row(
        "chunk-first-open",
        "Chunks have an end, and no beginning.",
        _chunks(lambda p: p.chunk(p.key) <= p.chunk(p.query)),
    ),
    _row(
        "chunk-last-open",
        "Chunks have a beginning, and no end.",
        _chunks(lambda p: p.chunk(p.key) >= p.chunk(p.query)),
    ),
    _row("chunk-towards-zero", "The quotient is rounded towards 0, not down.", _chunks(_towards_0)),
)

COUNTED = (
    _count("chunk-start-ignored", "Chunks begin at 0, padding on the left too.", _chunks(lambda p: p.same(start=0))),
    _count("chunk-start-added", "chunk_start is added, not subtracted.", _chunks(lambda p: p.same(start=-p.start))),
    _count(
        "chunk-start-of-first-item",
        "Chunks of every item begin where those of item 0 do.",
        _chunks(lambda p: p.same(start=p.start[:1])),
    ),
    _count(
        "chunk-start-of-keys-alone",
        "chunk_start is subtracted from keys, and not from queries.",
        _chunks(lambda p: p.chunk(p.query, 0) == p.chunk(p.key)),
    ),
    _count(
        "chunk-offset-ignored",
        "The chunk of query i is that of position i: a past, or an offset, is not counted.",
        _chunks(lambda p: p.chunk(p.row) == p.chunk(p.key)),
    ),
    _count(
        "chunk-past-not-counted",
        "Chunks count from the first new key, not from the first of the past.",
        _chunks(lambda p: p.same(start=p.start + p.past)),
        seen_in="PaddlePaddle/PaddleFormers#4536",
    ),
)

JOINED = (
    _join("chunk-without-causal", "Chunks replace the causal mask.", _other_sources(causal=False)),
    _join("chunk-without-window", "Chunks replace the window.", _other_sources(window=None)),
    _join("chunk-without-lengths", "Chunks replace the lengths.", _other_sources(valid_lens=None), stage="keys"),
    _join(
        "chunk-or-others",
        "Chunks join the other sources by OR.",
        after("allowed", lambda s, right: _without_chunks(s) | _Places(s).same(), has_chunks),
    ),
)

BUGS = (*CHUNKS, *COUNTED, *JOINED)
