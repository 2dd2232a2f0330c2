"""Attention between the projections block by block, for calls that ask for no stages and no weights.

A block's scores stand in memory only while it is computed; the backward pass computes them again. Shapes as in
`mha_core.stages`. Half precision is computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import ops

from backends.tf.fast.blocks import Blocks, Chunk, after, chunks_of, joined
from backends.tf.fast.scoring import Scoring, bias_gradient, biased
from backends.tf.ops.attention import add_bias, after_past, masked_softmax, zero_rows
from backends.tf.ops.heads import fold_groups, unfold_groups
from backends.tf.ops.masks import Mask, Span, allowed_keys, cut, cut_source, reachable, restricted


class Attended(NamedTuple):
    """The output (B, Lq, Do), and the pair keys (B, G, Lk, d), values (B, G, Lk, dv), or None if not asked for."""

    output: tf.Tensor
    present: tuple[tf.Tensor, tf.Tensor] | None


@tf.autograph.experimental.do_not_convert
def attend_in_blocks(
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    past: tuple[tf.Tensor | None, tf.Tensor | None],
    scoring: Scoring,
    mask: Mask,
    dropout: keras.layers.Dropout,
    training: bool,
    block: int | None = None,
) -> tf.Tensor:
    """(B, H, Lq, dv): what the stages `scores` to `heads` come to, without any of their (B, H, Lq, Lk).

    Args:
        queries, keys, values: (B, H, Lq, d), (B, G, L, d), (B, G, L, dv).
        past: keys (B, G, Lk - L, d) and values (B, G, Lk - L, dv) that stand before these, or two None.
        scoring, mask, dropout, training: of the call.
        block: queries of one block. None: as many as are fastest.
    """
    seed = _seed(mask, dropout, training)
    if past[0] is not None and queries.shape[2] == 1 and mask.keep is None and seed is None:
        return _attend_once(queries, (past[0], keys), (past[1], values), scoring, mask)
    queries = scoring.query(queries)
    keys, values = scoring.key(after_past(past[0], keys, mask)), after_past(past[1], values, mask)
    wide = tf.float64 if values.dtype == tf.float64 else tf.float32
    floats = [queries, keys, values, *scoring.parameters]
    bias = None if mask.bias is None else _definite(mask.bias, mask)
    if bias is not None:
        floats.append(bias)
    call = _Call(
        scoring,
        mask,
        _Dropout(mask.keep, dropout.rate, seed),
        chunks_of(queries, keys, bias, mask, scoring.size * wide.size, block),
    )

    @tf.custom_gradient
    def attended(*floats: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        # An eager tape would record, and keep, what happens in here too.
        heads, marks = call.forward(*map(tf.stop_gradient, floats))

        def backward(d_heads: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return _gradients(call, heads, marks)(d_heads, *floats)

        return heads, backward

    return tf.cast(attended(*(tf.cast(x, wide) for x in floats)), values.dtype)


def _attend_once(
    query: tf.Tensor, keys: tuple[tf.Tensor, ...], values: tuple[tf.Tensor, ...], scoring: Scoring, mask: Mask
) -> tf.Tensor:
    """(B, H, 1, dv) for one query, whose scores are few: past and new keys stay where they are."""
    if mask.past_padding is not None:
        keys, values = ((zero_rows(past, mask.past_padding), new) for past, new in (keys, values))
    query = scoring.query(query)
    scores = tf.concat([scoring.before_bias(query, scoring.key(x), *scoring.parameters) for x in keys], axis=3)
    weights = masked_softmax(add_bias(scores, mask.bias), allowed_keys(mask))
    past_len = tf.shape(keys[0])[2]
    parts = weights[..., :past_len], weights[..., past_len:]
    return tf.add_n([_product(*pair) for pair in zip(parts, values, strict=True)])


def _gradients(call: _Call, heads: tf.Tensor, marks: tf.Tensor) -> Callable[..., tuple[tf.Tensor, ...]]:
    """The backward pass as a function that has a gradient itself: what the blocks' own operations have."""

    @tf.custom_gradient
    def gradients(d_heads: tf.Tensor, *floats: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable[..., Any]]:
        # Traced, because forward-mode differentiation comes here with all tapes stopped.
        @tf.function(autograph=False)
        def again(d_heads: tf.Tensor, floats: Any, cotangents: Any) -> Any:
            once = tf.gradients(call.forward(*floats)[0], floats, d_heads)
            return tf.gradients(once, (d_heads, *floats), cotangents, unconnected_gradients="zero")

        def backward(*cotangents: tf.Tensor) -> Any:
            return again(d_heads, floats, cotangents)

        return call.backward(*map(tf.stop_gradient, (d_heads, heads, marks, *floats))), backward

    return gradients


class _Dropout(NamedTuple):
    """What dropout does to the weights of one chunk: by a keep-mask, or by numbers drawn from a seed; or nothing."""

    keep: tf.Tensor | None
    rate: float
    seed: tf.Tensor | None

    def factor(self, span: Span, keys: Span | None, shape: Any, dtype: tf.DType) -> tf.Tensor | None:
        """What the weights of these queries and keys, of this shape, are multiplied by: the same whenever asked."""
        if self.keep is not None:
            kept = cut(cut(self.keep, 2, span), 3, keys)
        elif self.seed is not None:
            seed = tf.random.experimental.stateless_fold_in(self.seed, tf.cast(span.start, tf.int64))
            kept = tf.random.stateless_uniform(shape, seed) >= self.rate
        else:
            return None
        return tf.cast(kept, dtype) / (1.0 - self.rate)


@dataclass(frozen=True)
class _Call:
    """All of one call but the floats that have gradients: queries, keys, values, the score's parameters, bias."""

    scoring: Scoring
    mask: Mask
    dropout: _Dropout
    chunks: list[list[Chunk]]

    def forward(self, *floats: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The heads (B, H, Lq, dv), and (B, H, Lq, 1): NaN for the rows whose weights are, 0 for the others."""
        parts = self._each_chunk(lambda part, *floats: part.forward(*floats), floats, group_of=floats)
        heads, marks = ([[found[i] for found in row] for row in parts] for i in range(2))
        return joined(heads, floats[0].shape), joined(marks, floats[0].shape)

    def backward(
        self, d_heads: tf.Tensor, heads: tf.Tensor, marks: tf.Tensor, *floats: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """The gradients of the floats, from that of the heads."""
        rows = d_heads, heads, marks
        parts = self._each_chunk(lambda part, *arrays: part.backward(*arrays), (*rows, *floats), group_of=floats)
        gradients = []
        for index, x in enumerate(floats):
            found = [[part[index] for part in row] for row in parts]
            is_parameter = 3 <= index < 3 + len(self.scoring.parameters)
            gradients.append(tf.add_n([x for row in found for x in row]) if is_parameter else joined(found, x.shape))
        return tuple(gradients)

    def _each_chunk(self, step: Callable[..., Any], arrays: Sequence[tf.Tensor], group_of: Any) -> list[list[Any]]:
        """`step` of each chunk, given its part of the call and of the arrays: some like queries, then the floats."""
        queries, keys = group_of[:2]
        group = queries.shape[1] // keys.shape[1]
        first = len(arrays) - len(group_of)  # of the floats
        found: list[list[Any]] = []
        last: Any = []
        for row in self.chunks:
            found.append([])
            for chunk in row:

                def part_of(index: int, x: tf.Tensor, chunk: Chunk = chunk) -> tf.Tensor:
                    if 3 <= index < 3 + len(self.scoring.parameters):
                        return x
                    return chunk.of(x, 1 if index in (1, 2) else group)

                with after(last):
                    parts = [part_of(index - first, x) for index, x in enumerate(arrays)]
                    last = [step(self._part(chunk, group), *parts)]
                found[-1] += last
        return found

    def _part(self, chunk: Chunk, group: int) -> _Part:
        heads = None if chunk.heads is None else Span(chunk.heads.start * group, chunk.heads.size * group)
        mask = restricted(self.mask, chunk.items, heads)
        seed = self.dropout.seed
        if seed is not None:
            for span in (chunk.items, chunk.heads):
                seed = tf.random.experimental.stateless_fold_in(seed, 0 if span is None else span.start)
        return _Part(self.scoring, mask, _Dropout(mask.keep, self.dropout.rate, seed), chunk.blocks)


@dataclass(frozen=True)
class _Part:
    """One chunk of a call."""

    scoring: Scoring
    mask: Mask
    dropout: _Dropout
    blocks: Blocks

    def forward(self, *floats: tf.Tensor) -> tuple[tf.Tensor, ...]:
        def step(span: Span, sums: Any) -> Any:
            reached, (queries, keys, values, parameters, bias) = self._block(span, floats)
            scores = biased(self.scoring.before_bias(queries, keys, *parameters), bias)
            scores, has_key = _masked(scores, allowed_keys(self.mask, span, reached))
            weights = tf.nn.softmax(scores)
            kept = self.dropout.factor(span, reached, tf.shape(weights), weights.dtype)
            heads = _product(weights if kept is None else weights * kept, values)
            mark = _mark(scores)
            return (_where(has_key, heads + mark), mark), ()

        return self.blocks.each(step)[0]

    def backward(
        self, d_heads: tf.Tensor, heads: tf.Tensor, marks: tf.Tensor, *floats: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        first_bias = 3 + len(self.scoring.parameters)
        # What has rows of its own in each block: the queries, and a bias with an axis of them. The rest adds up.
        by_row = [index == 0 or (index >= first_bias and x.shape[2] != 1) for index, x in enumerate(floats)]

        def step(span: Span, sums: Any) -> Any:
            reached, (queries, keys, values, parameters, bias) = self._block(span, floats)
            plain = self.scoring.before_bias(queries, keys, *parameters)
            allowed = allowed_keys(self.mask, span, reached)
            scores, has_key = _masked(biased(plain, bias), allowed)
            weights = tf.nn.softmax(scores)
            kept = self.dropout.factor(span, reached, tf.shape(weights), weights.dtype)
            d_block = _where(has_key, cut(d_heads, 2, span)) + cut(marks, 2, span)
            dropped = weights if kept is None else weights * kept
            d_values = tf.matmul(*(fold_groups(x, values.shape[1]) for x in (dropped, d_block)), transpose_a=True)
            d_weights = _product(d_block, values, transpose=True)
            if kept is not None:
                d_weights *= kept
            if allowed is None:
                inner = d_block * cut(heads, 2, span)
            else:  # the heads have met what excluded values hold, which may be infinite
                d_weights = _where(allowed, d_weights)
                inner = weights * d_weights
            d_scores = _where(allowed, weights * (d_weights - tf.reduce_sum(inner, axis=-1, keepdims=True)))
            d_queries, d_keys, *others = self.scoring.gradients(d_scores, plain, queries, keys, *parameters)
            found = [d_queries, d_keys, d_values, *others, *(bias_gradient(d_scores, x) for x in bias)]
            for index, axis in ((1, 2), (2, 2), *((i, 3) for i in range(first_bias, len(floats)))):
                found[index] = _grown(found[index], axis, reached, floats[index])
            rows = tuple(x for x, own in zip(found, by_row, strict=True) if own)
            added = tuple(x for x, own in zip(found, by_row, strict=True) if not own)
            return rows, added if sums is None else tuple(x + y for x, y in zip(sums, added, strict=True))

        found = [iter(x) for x in self.blocks.each(step)]
        return tuple(next(found[0 if own else 1]) for own in by_row)

    def _block(self, span: Span, floats: tuple[tf.Tensor, ...]) -> tuple[Span | None, tuple[Any, ...]]:
        """The keys that these queries reach; what the block has of queries, keys, values, parameters and bias."""
        reached = reachable(self.mask, span)
        queries, keys, values, *others = floats
        num_parameters = len(self.scoring.parameters)
        bias = [cut_source(cut_source(x, 2, span), 3, reached) for x in others[num_parameters:]]
        keys, values = cut(keys, 2, reached), cut(values, 2, reached)
        return reached, (cut(queries, 2, span), keys, values, others[:num_parameters], bias)


def _masked(scores: tf.Tensor, allowed: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor | None]:
    """-inf where a key is excluded, and 0 in rows without a key; (.., n, 1), which rows have one: None for all.

    The weights of a row without a key are no NaN, then, and count for nothing.
    """
    if allowed is None:
        return scores, None
    has_key = tf.reduce_any(allowed, axis=-1, keepdims=True)
    infinity = tf.constant(float("inf"), scores.dtype)
    return tf.where(allowed, scores, tf.where(has_key, -infinity, tf.zeros((), scores.dtype))), has_key


def _mark(scores: tf.Tensor) -> tf.Tensor:
    """(B, H, n, 1): NaN for the rows whose weights are NaN, 0 for others.

    tf.nn.softmax is one pass of oneDNN, which turns a row with a NaN into zeros in float32.
    """
    highest = tf.reduce_max(scores, axis=-1, keepdims=True)
    without = tf.zeros((), scores.dtype)
    fine = tf.math.is_finite(highest)
    if scores.shape[-1] is None:
        fine |= tf.equal(tf.shape(scores)[-1], 0)
    elif scores.shape[-1] == 0:
        return tf.zeros_like(highest)
    return tf.stop_gradient(tf.where(fine, without, tf.constant(float("nan"), scores.dtype)))


def _where(condition: tf.Tensor | None, x: tf.Tensor) -> tf.Tensor:
    """x, 0 where the condition doesn't hold."""
    return x if condition is None else tf.where(condition, x, tf.zeros((), x.dtype))


def _product(x: tf.Tensor, values: tf.Tensor, *, transpose: bool = False) -> tf.Tensor:
    """The product with values, or with values transposed: (B, H, n, .) and (B, G, m, dv) -> (B, H, n, .)."""
    return unfold_groups(tf.matmul(fold_groups(x, values.shape[1]), values, transpose_b=transpose), x.shape[1])


def _seed(mask: Mask, dropout: keras.layers.Dropout, training: bool) -> tf.Tensor | None:
    """Where the layer draws which weights it drops in this call; None if it drops none, or is told which."""
    if mask.keep is not None or not training or dropout.rate == 0.0:
        return None
    return tf.cast(dropout.seed_generator.next(), tf.int64)


def _definite(bias: tf.Tensor, mask: Mask) -> tf.Tensor:
    """With as many rows and columns as there are queries and keys, where tracing does not know whether it has one."""
    sizes = list(ops.shape(bias))
    for axis, length in ((2, mask.query_len), (3, mask.key_len)):
        if bias.shape[axis] is None:
            sizes[axis] = length
    return tf.broadcast_to(bias, sizes) if None in bias.shape[2:] else bias


def _grown(gradient: tf.Tensor, axis: int, keys: Span | None, whole: tf.Tensor) -> tf.Tensor:
    """With zeros where `keys` left something out of the axis."""
    length = whole.shape[axis]
    if keys is None or gradient.shape[axis] == length:
        return gradient
    paddings = [[0, 0]] * 4
    paddings[axis] = [keys.start, length - keys.start - keys.size]
    return tf.pad(gradient, paddings)
