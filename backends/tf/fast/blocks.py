"""How the fast path cuts a call into chunks of items and heads, and each chunk into blocks of queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from backends.tf.ops.cuts import Span, cut_source
from backends.tf.ops.framework import is_traced_for_xla, shape_of
from backends.tf.ops.masks import Mask, Part
from mha_core.call.blocks import SMALLEST_BLOCK, Block, query_block, query_blocks

BUDGET = 2**23
"""Bytes of scores in one block; caches hold this much, and the allocator reuses it without asking for new pages."""

UNROLLED = 256
"""Most blocks that a traced program writes out, each with only the keys that it needs; more are put in a loop."""

UNROLLED_BY_XLA = 8
"""The same where XLA compiles: on a CPU it computes what is written out side by side, and holds the scores of all."""

SKIPPING = 8
"""Smallest number of blocks of queries in calls whose queries reach different keys, so that blocks can skip keys."""

Rows = tuple[tf.Tensor, ...]


class Blocks(NamedTuple):
    """A division of the queries into `count` blocks of `size` queries, and one block of the remaining `rest` queries.

    size, count, rest: integers, or scalar tensors in a graph.
    bands: the number of `tf.while_loop`s that run the blocks, one after the other. Each loop uses only the keys that
        its queries need. 0: no loop (unrolled) in eager mode or for a few blocks; otherwise one loop with all keys.
    """

    size: Any
    count: Any
    rest: Any
    bands: int = 0

    def each(self, step: Callable[[Span, Rows | None], tuple[Rows, Rows]]) -> tuple[Rows, Rows]:
        """Run `step` on each block in turn. Return (the blocks' rows, joined on axis 2; the sums of the last step).

        `step(span, sums)` gets a block's Span of queries and the sums of the step before (None at first). It returns
        two tuples of tensors: rows (B, H, n, ...) for the block's n queries, and sums over all blocks so far. Only one
        block is in memory at a time.
        """
        size, count, rest, bands = self
        sums: Any = None
        is_known = isinstance(count, int) and isinstance(size, int)
        if is_known and not bands and (tf.executing_eagerly() or count <= UNROLLED):
            blocks: list[Rows] = []
            for part in query_blocks(size * count + rest, size) or [slice(0, 0)]:
                with after(blocks[-1:]):
                    rows, sums = step(Span(part.start, part.stop - part.start), sums)
                blocks.append(rows)
        else:
            last, sums = step(Span(size * count, rest), None)
            arrays = tuple(tf.TensorArray(x.dtype, count) for x in last)
            for band in query_blocks(count, -(-count // bands)) if bands else [slice(0, count)]:
                # The arrays go from loop to loop, so that even XLA runs one after the other.
                arrays, sums = self._looped(step, band, arrays, sums)
            blocks = [tuple(_joined(array.stack()) for array in arrays), last]
        return tuple(concat(x, 2) for x in zip(*blocks, strict=True)), sums

    def _looped(self, step: Callable[[Span, Rows | None], tuple[Rows, Rows]], band: slice, *made: Any) -> Any:
        """The arrays and sums `made`, after `step` on each block of a band."""
        size = self.size
        within = slice(band.start * size, band.stop * size) if self.bands else slice(None)

        def body(index: tf.Tensor, arrays: Any, sums: Rows) -> tuple[tf.Tensor, Any, Rows]:
            rows, sums = step(Span(index * size, size, within), sums)
            return index + 1, tuple(a.write(index, x) for a, x in zip(arrays, rows, strict=True)), sums

        most = band.stop - band.start if self.bands else None
        before = band.start, *made
        _, *after = tf.while_loop(lambda index, *_: index < band.stop, body, before, None, 1, maximum_iterations=most)
        return after


class Chunk(NamedTuple):
    """A part of a call: a Span of batch items, a Span of key heads (each None for all), and its Blocks of queries."""

    items: Span | None
    kv_heads: Span | None
    blocks: Blocks

    def of(self, x: tf.Tensor, group: int = 1) -> tf.Tensor:
        """Return the part of x (B or 1, heads or 1, ...) in this chunk. x has `group` heads for each key head."""
        block = self.block(group)
        return cut_source(cut_source(x, 0, block.items), 1, block.heads)

    def at(self, start: tf.Tensor) -> Chunk:
        """Return a chunk of the same size that begins at batch item `start[0]` and key head `start[1]`."""
        items, kv_heads = (
            None if span is None else Span(start[axis], span.size)
            for axis, span in enumerate((self.items, self.kv_heads))
        )
        return Chunk(items, kv_heads, self.blocks)

    def written_out(self) -> Chunk:
        """Return this chunk with `bands=0` in its Blocks: a few blocks then run without a `tf.while_loop`."""
        return self._replace(blocks=self.blocks._replace(bands=0))

    @property
    def start(self) -> tuple[int, int]:
        """Return the first item and key head."""
        items, kv_heads = (0 if span is None else span.start for span in (self.items, self.kv_heads))
        return items, kv_heads

    def block(self, group: int) -> Part:
        """Return this chunk as a Block of the scores (B, H, Lq, Lk), where `group` query heads share a key head."""
        return Block(self.items, None if self.kv_heads is None else self.kv_heads.times(group), None, None)


def after(blocks: Sequence[Any]) -> Any:
    """Return a context. Operations in it run after those that made `blocks`, in a graph as in eager code."""
    made = [] if tf.executing_eagerly() else tf.nest.flatten(list(blocks))
    return tf.control_dependencies([x for x in made if x is not None])


def chunks_of(
    queries: tf.Tensor, keys: tf.Tensor, mask: Mask, bytes_per_score: int, block: int | None
) -> list[list[Chunk]]:
    """Return all chunks of a call: a list of chunks for each span of batch items.

    Args:
        queries, keys: (B, H, Lq, d), (B, G, Lk, d).
        mask: the mask of the call, including its bias.
        bytes_per_score: the bytes of memory for one score.
        block: how many queries a block has. None: as many as fit in the memory budget.
    """
    batch, num_heads, query_len, _ = shape_of(queries)
    kv_heads, key_len = shape_of(keys)[1:3]
    sizes = (batch, query_len, key_len)
    arrays = [x for x in (mask.bias, mask.allowed, mask.keep) if x is not None]
    if not all(isinstance(x, int) for x in sizes) or any(None in x.shape[:2] for x in arrays) or block is not None:
        return [[Chunk(None, None, _blocks(sizes, num_heads * bytes_per_score, block))]]
    per_query = num_heads // kv_heads * key_len * bytes_per_score  # of one key head
    total = batch * kv_heads * query_len * per_query
    in_loops = is_traced_for_xla() and total > UNROLLED_BY_XLA * BUDGET
    if total > UNROLLED * BUDGET and not tf.executing_eagerly() and not in_loops:
        return [[Chunk(None, None, _blocks(sizes, num_heads * bytes_per_score, block))]]
    at_once = query_len
    varied = mask.reach is not None and mask.reach.stop.shape[1] > 1
    if varied:
        at_once = query_block(query_len, SKIPPING, max(query_len, 1))
    fitting = max(1, BUDGET // max(1, at_once * per_query))  # key heads
    part_of = _divisor if in_loops else _even
    per_chunk = part_of(kv_heads, fitting) if fitting < kv_heads else kv_heads
    items = part_of(batch, fitting // kv_heads) if fitting >= kv_heads else 1
    size = min(at_once, query_block(query_len, items * per_chunk * per_query, BUDGET))
    bands = (SKIPPING if varied else 1) if in_loops else 0
    blocks = Blocks(max(1, size), query_len // max(1, size), query_len % max(1, size), bands)
    item_spans = [None] if items >= batch else [Span(i, min(items, batch - i)) for i in range(0, batch, items)]
    heads = range(0, kv_heads, per_chunk)
    head_spans = [None] if per_chunk == kv_heads else [Span(h, min(per_chunk, kv_heads - h)) for h in heads]
    return [[Chunk(i, h, blocks) for h in head_spans] for i in item_spans]


def joined(parts: Sequence[Sequence[tf.Tensor]], shape: tf.TensorShape) -> tf.Tensor:
    """Return the arrays of all chunks as one array, concatenated on axes 0 (batch items) and 1 (heads).

    Args:
        parts: a list for each span of items; each list has an array for each span of key heads.
        shape: the shape of the result, (B or 1, heads or 1, ...). Along an axis of size 1, the arrays are added.
    """
    row = tuple(parts[0][0].shape[2:])
    if shape[0] != 1 != shape[1] and None not in (*shape[:2], *row):
        heads = [tf.reshape(x, (-1, *row)) for of_items in parts for x in of_items]
        return tf.reshape(concat(heads, 0), (*shape[:2], *row))  # one copy, not one for each axis
    rows = [tf.add_n(row) if shape[1] == 1 else concat(row, 1) for row in parts]
    return tf.add_n(rows) if shape[0] == 1 else concat(rows, 0)


def _even(number: int, most: int) -> int:
    """The size of the parts into which `number` is cut: at most `most`, and all parts about equal."""
    return -(-number // -(-number // most)) if number else 1


def _divisor(number: int, most: int) -> int:
    """The largest size, at most `most`, of parts that are all equal."""
    return max(size for size in range(1, min(number, most) + 1) if number % size == 0)


def _blocks(sizes: tuple[Any, Any, Any], bytes_per_score: int, block: int | None) -> Blocks:
    """Blocks of the whole call."""
    batch, query_len, key_len = sizes
    size: Any = block
    if block is None:
        if isinstance(query_len, int) and query_len <= SMALLEST_BLOCK:
            size = query_len
        elif all(isinstance(x, int) for x in sizes):
            size = query_block(query_len, batch * key_len * bytes_per_score, BUDGET)
        else:  # the same rule
            per_query = tf.cast(batch, tf.int64) * tf.cast(key_len, tf.int64) * bytes_per_score
            powers = tf.constant([2**n for n in range(SMALLEST_BLOCK.bit_length(), 31)], tf.int64)
            fits = powers <= BUDGET // tf.maximum(per_query, 1)
            size = tf.cast(tf.reduce_max(tf.where(fits, powers, SMALLEST_BLOCK)), tf.int32)
    if isinstance(query_len, int) and isinstance(size, int):
        size = max(1, min(size, query_len))
        return Blocks(size, query_len // size, query_len % size)
    size = tf.minimum(size, query_len)  # at least one block, maybe an empty one
    count = tf.maximum(1, query_len // tf.maximum(size, 1))
    return Blocks(size, count, query_len - count * size)


def concat(parts: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """Return the arrays joined along this axis."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis)


def _joined(blocks: tf.Tensor) -> tf.Tensor:
    """(count, B, H, n, .) -> (B, H, count * n, .)."""
    count, batch, heads, length, width = shape_of(blocks)
    return tf.reshape(tf.transpose(blocks, (1, 2, 0, 3, 4)), (batch, heads, count * length, width))
