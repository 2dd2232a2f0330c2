"""Forward and backward pass of the fast path: chunk by chunk, and block by block in each.

The backward pass computes the weights of a block again. Everything here is computed in float32 or float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import tensorflow as tf

from backends.tf.fast.blocks import Blocks, Chunk, after, joined
from backends.tf.fast.floats import Floats, Rows
from backends.tf.fast.scoring import bias_gradient, doubtful_scores, product, similarity, similarity_gradients
from backends.tf.ops.attention import Score, add_bias
from backends.tf.ops.cuts import Span, cut
from backends.tf.ops.framework import shape_of
from backends.tf.ops.heads import fold_groups
from backends.tf.ops.masks import Mask, Part, allowed_keys, part_of, reachable
from backends.tf.ops.products import matmul, widened
from mha_core.call.blocks import Block


class Dropping(NamedTuple):
    """The dropout of a call: its `rate`, and the `seed` of its random numbers. `seed` is None if none are drawn."""

    rate: float
    seed: tf.Tensor | None

    def of_chunk(self, chunk: Chunk) -> Dropping:
        """Return the dropout of a chunk, with a seed of its own."""
        seed = self.seed
        if seed is not None:
            for span in (chunk.items, chunk.kv_heads):
                seed = tf.random.experimental.stateless_fold_in(seed, 0 if span is None else span.start)
        return Dropping(self.rate, seed)

    def factor(self, weights: tf.Tensor, mask: Mask, queries: Span) -> tf.Tensor | None:
        """Return the factors of dropout on these queries' weights, 0 or 1 / (1 - rate); None without dropout.

        Each call for the same queries returns the same factors, so that the backward pass can repeat the dropout.
        """
        if mask.keep is not None:
            kept = mask.keep
        elif self.seed is not None:
            seed = tf.random.experimental.stateless_fold_in(self.seed, tf.cast(queries.start, tf.int64))
            kept = tf.random.stateless_uniform(tf.shape(weights), seed) >= self.rate
        else:
            return None
        return tf.cast(kept, weights.dtype) / (1.0 - self.rate)


@dataclass(frozen=True)
class Passes:
    """The forward and backward pass of one call. Both take the bias from `floats`, not from `mask`."""

    score: Score
    mask: Mask
    dropping: Dropping
    chunks: list[list[Chunk]]

    def written_out(self) -> Passes:
        """Return these passes with `bands=0` in all Blocks: a few blocks then run without a `tf.while_loop`."""
        return replace(self, chunks=[[chunk.written_out() for chunk in of_items] for of_items in self.chunks])

    def forward(self, floats: Floats) -> Rows:
        """Return the heads and marks of all queries."""
        count, shape, doubtful = len(Rows._fields), floats.queries.shape, doubtful_scores(floats, self.score)
        found = self._each_chunk(floats, lambda chunk, passes: passes.forward(floats.of_chunk(chunk), doubtful), count)
        return Rows(*(joined([[rows[i] for rows in of_items] for of_items in found], shape) for i in range(count)))

    def backward(self, d_heads: tf.Tensor, made: Rows, floats: Floats) -> Floats:
        """Return the gradients of `floats`. `d_heads`: the gradient of the heads; `made`: the result of `forward`."""

        def step(chunk: Chunk, passes: _ChunkPasses) -> tuple[tf.Tensor, ...]:
            rows = made.map(lambda x: chunk.of(x, floats.group))
            return passes.backward(chunk.of(d_heads, floats.group), rows, floats.of_chunk(chunk)).given()

        found = self._each_chunk(floats, step, len(floats.given()))

        def whole(index: int, x: tf.Tensor) -> tf.Tensor:
            """Return the gradient of x, the given float of this index, joined from those of the chunks."""
            parts = [[gradients[index] for gradients in of_items] for of_items in found]
            return tf.add_n([part for row in parts for part in row]) if x is floats.vector else joined(parts, x.shape)

        return floats.refilled(whole(index, x) for index, x in enumerate(floats.given()))

    def _each_chunk(
        self, floats: Floats, step: Callable[[Chunk, _ChunkPasses], tuple[tf.Tensor, ...]], count: int
    ) -> list[list[Any]]:
        """The `count` results of `step` on each chunk in turn, with those of the same items in one list."""
        first, dtype = self.chunks[0][0], floats.queries.dtype
        if first.blocks.bands and sum(map(len, self.chunks)) > 1:
            starts = tf.constant([chunk.start for of_items in self.chunks for chunk in of_items])

            def at(start: tf.Tensor) -> tuple[tf.Tensor, ...]:
                chunk = first.at(start)
                return tuple(step(chunk, self._of_chunk(chunk, floats.group)))

            stacked = tf.map_fn(at, starts, parallel_iterations=1, fn_output_signature=(dtype,) * count)
            each = zip(*map(tf.unstack, stacked), strict=True)
            return [[next(each) for _ in of_items] for of_items in self.chunks]
        found: list[list[Any]] = []
        last: Any = []
        for of_items in self.chunks:
            found.append([])
            for chunk in of_items:
                with after(last):
                    last = [step(chunk, self._of_chunk(chunk, floats.group))]
                found[-1] += last
        return found

    def _of_chunk(self, chunk: Chunk, group: int) -> _ChunkPasses:
        mask = part_of(self.mask, chunk.block(group))
        return _ChunkPasses(self.score, mask, self.dropping.of_chunk(chunk), chunk.blocks)


class _Weighed(NamedTuple):
    """The arrays of a block of n queries and the m keys that they reach, which both passes compute.

    floats: of the block. keys: the span of the m keys, None for all. similarity: (B, H, n, m), before the bias.
    allowed: (B, H, n, m), None where all are. scores: with the bias, -inf where a key is excluded. has_key:
    (B, H, n, 1), None where all rows have one. weights: before dropout. factor: that of dropout on them,
    None for 1.
    """

    floats: Floats
    keys: Span | None
    similarity: tf.Tensor
    allowed: tf.Tensor | None
    scores: tf.Tensor
    has_key: tf.Tensor | None
    weights: tf.Tensor
    factor: tf.Tensor | None

    @property
    def kept(self) -> tf.Tensor:
        """Return the weights after dropout."""
        return self.weights if self.factor is None else self.weights * self.factor


@dataclass(frozen=True)
class _ChunkPasses:
    """The two passes of one chunk; shapes B, H and G are those of the chunk here."""

    score: Score
    mask: Mask
    dropping: Dropping
    blocks: Blocks

    def forward(self, floats: Floats, doubtful: tf.Tensor | None) -> Rows:
        def step(queries: Span, sums: Any) -> Any:
            block = self._weigh(floats, queries)
            heads = product(block.kept, block.floats.values)
            marks = _marks(block.scores, doubtful)
            return (_where(block.has_key, heads + marks), marks), ()

        rows, _ = self.blocks.each(step)
        return Rows(*rows)

    def backward(self, d_heads: tf.Tensor, made: Rows, floats: Floats) -> Floats:
        # Queries, and a bias with an axis of queries, have rows in each block; other gradients are sums over blocks.
        given = [name for name, x in floats._asdict().items() if x is not None]
        by_row = ["queries"] + ["bias"] * (floats.bias is not None and floats.bias.shape[2] != 1)
        added_up = [name for name in given if name not in by_row]

        def step(queries: Span, sums: Any) -> Any:
            rows = made.map(lambda x: cut(x, 2, queries))
            found = self._gradients(cut(d_heads, 2, queries), rows, floats, queries)._asdict()
            added = tuple(widened(found[name]) for name in added_up)
            if sums is not None:
                added = tuple(x + y for x, y in zip(sums, added, strict=True))
            return tuple(found[name] for name in by_row), added

        rows, sums = self.blocks.each(step)
        whole = (tf.cast(x, d_heads.dtype) for x in sums)
        return Floats(**dict(zip([*by_row, *added_up], [*rows, *whole], strict=True)))

    def _weigh(self, floats: Floats, queries: Span) -> _Weighed:
        """The scores and weights of these queries, with the keys that they reach."""
        keys = reachable(self.mask, queries)
        block: Part = Block(None, None, queries, keys)
        part = floats.of_block(block)
        mask = part_of(self.mask, block)._replace(bias=part.bias)
        plain = similarity(part.queries, part.keys, self.score._replace(vector=part.vector))
        allowed = allowed_keys(mask)
        scores, has_key = _masked(add_bias(plain, mask), allowed)
        weights = _softmax(scores, allowed)
        factor = self.dropping.factor(weights, mask, queries)
        return _Weighed(part, keys, plain, allowed, scores, has_key, weights, factor)

    def _gradients(self, d_heads: tf.Tensor, made: Rows, floats: Floats, queries: Span) -> Floats:
        """A block's share of the chunk's gradients; `d_heads` and `made` are the block's, `floats` the chunk's."""
        block = self._weigh(floats, queries)
        part = block.floats
        d_rows = _where(block.has_key, d_heads) + made.marks
        d_values = _value_gradients(block, d_rows, made.marks)
        inner = None
        if block.allowed is None:  # else the heads have met what excluded values hold, which may be infinite
            inner = tf.reduce_sum(widened(d_rows) * widened(made.heads), axis=-1, keepdims=True)
            inner = tf.cast(inner, d_rows.dtype)
        if inner is not None and block.factor is None and d_rows.dtype != tf.bfloat16:
            # The difference is one product, which saves a pass over the block.
            ones = tf.ones_like(part.values[..., :1])
            difference = product(tf.concat([d_rows, -inner], -1), tf.concat([part.values, ones], -1), transpose=True)
        else:
            d_weights = product(d_rows, part.values, transpose=True)
            if block.factor is not None:
                d_weights *= block.factor
            if inner is None:
                d_weights = _where(block.allowed, d_weights)
                inner = tf.reduce_sum(block.weights * d_weights, axis=-1, keepdims=True)
            difference = d_weights - inner
        d_scores = _where(block.allowed, block.weights * difference)
        score = self.score._replace(vector=part.vector)
        d_queries, d_keys, d_vector = similarity_gradients(d_scores, block.similarity, part.queries, part.keys, score)
        d_bias = None
        if part.bias is not None and floats.bias is not None:
            d_bias = _grown(bias_gradient(d_scores, part.bias), 3, block.keys, floats.bias)
        d_keys = _grown(d_keys, 2, block.keys, floats.keys)
        d_values = _grown(d_values, 2, block.keys, floats.values)
        return Floats(d_queries, d_keys, d_values, d_vector, d_bias)


def _value_gradients(block: _Weighed, d_rows: tf.Tensor, marks: tf.Tensor) -> tf.Tensor:
    """(B, G, m, dv): the gradients of a block's values from those of its rows, which hold the marks.

    A row of NaN gives NaN to its allowed keys alone, and 0 to the others: two more passes, where there is such a row.
    """
    # XLA's maximum on a CPU passes over a NaN, which leaves no mark; all of such a row's weights are NaN then.
    first = tf.reduce_sum(block.weights[..., :1], axis=-1, keepdims=True)
    marked = tf.math.is_nan(marks + first)

    def product_of(kept: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        groups = block.floats.values.shape[1]
        return matmul(fold_groups(kept, groups), fold_groups(rows, groups), transpose_a=True)

    def with_marks() -> tf.Tensor:
        nan, one = tf.constant(float("nan"), d_rows.dtype), tf.ones((), d_rows.dtype)
        kept = _where(block.allowed, tf.where(marked, nan, block.kept))
        return product_of(kept, tf.where(marked, one, d_rows))

    if block.allowed is None:
        return product_of(block.kept, d_rows)
    return tf.cond(tf.reduce_any(marked), with_marks, lambda: product_of(block.kept, d_rows))


def _masked(scores: tf.Tensor, allowed: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor | None]:
    """The scores, -inf where a key is excluded, and 0 in rows without a key; and which rows (.., n, 1) have one.

    The second is None if all have one. The zeros keep the weights of a row without a key from being NaN.
    """
    if allowed is None:
        return scores, None
    has_key = tf.reduce_any(allowed, axis=-1, keepdims=True)
    infinity = tf.constant(float("inf"), scores.dtype)
    return tf.where(allowed, scores, tf.where(has_key, -infinity, tf.zeros((), scores.dtype))), has_key


def _softmax(scores: tf.Tensor, allowed: tf.Tensor | None) -> tf.Tensor:
    """The softmax of each row, in which the weight of a lone key is 1.

    tf.nn.softmax makes it 1 - 2^-24 in float32 where it runs without oneDNN, as it does on some processors.
    """
    weights = tf.nn.softmax(scores)
    if weights.dtype != tf.float32 or (allowed is None and scores.shape[-1] not in (None, 1)):
        return weights
    return tf.where(weights > 1.0 - 2.0**-23, tf.ones(()), weights)


def _marks(scores: tf.Tensor, doubtful: tf.Tensor | None) -> tf.Tensor:
    """(B, H, n, 1): NaN for the rows whose weights are NaN, 0 for others.

    tf.nn.softmax is one pass of oneDNN, which turns a row with a NaN into zeros in float32. The scores are looked at
    where they are `doubtful`; None: always.
    """
    if scores.shape[-1] == 0:
        return tf.zeros_like(tf.reduce_max(scores, axis=-1, keepdims=True))
    if doubtful is None:
        doubtful = tf.constant(True) if scores.shape[-1] is not None else tf.shape(scores)[-1] > 0
    else:
        scores = scores[..., : tf.where(doubtful, shape_of(scores)[-1], 0)]
    highest = tf.reduce_max(scores, axis=-1, keepdims=True)
    fine = tf.math.is_finite(highest) | ~doubtful
    without = tf.zeros((), scores.dtype)
    return tf.stop_gradient(tf.where(fine, without, tf.constant(float("nan"), scores.dtype)))


def _where(condition: tf.Tensor | None, x: tf.Tensor) -> tf.Tensor:
    """`x` where the condition holds, else 0; a condition of None holds everywhere."""
    return x if condition is None else tf.where(condition, x, tf.zeros((), x.dtype))


def _grown(gradient: tf.Tensor, axis: int, keys: Span | None, whole: tf.Tensor) -> tf.Tensor:
    """The gradient of `whole`: that of its `keys` along the axis (None for all), and zeros for the other keys."""
    length = whole.shape[axis]
    if keys is None or gradient.shape[axis] == length:
        return gradient
    paddings = [[0, 0]] * 4
    paddings[axis] = [keys.start, length - keys.start - keys.size]
    return tf.pad(gradient, paddings)
