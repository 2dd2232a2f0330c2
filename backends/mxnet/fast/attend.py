"""Attention in MXNet from `queries`, `keys` and `values` to `heads`, without an array of all scores.

The scores of a block are kept only while it is computed; the backward pass computes them again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np

from backends.mxnet.fast.block import Array, BlockAttention, exclusion_of
from backends.mxnet.ops.attention import (
    Score,
    add_bias,
    additive_score,
    cap,
    dot_score,
    drop,
    masked_softmax,
    weighted_sum,
)
from backends.mxnet.ops.framework import mx, to_array
from backends.mxnet.ops.masks import Mask, cut, part_of, place
from backends.mxnet.ops.operators import operator, record, row_range, view
from mha_core.call.blocks import Block, Operands, query_blocks
from mha_core.call.blocks import query_block as fitting_block

BUDGET = 2**21
"""Bytes of scores in one block; the caches hold this much between the two products and the softmax."""

AT_ONCE = 2**22
"""Bytes of scores of a call up to which all heads are computed at once, since few large operators are faster then."""

RUN_AHEAD = 2**25
"""Bytes of scores after which Python waits for the operators, because each call that is queued holds memory."""

_add, _times = operator("_npi_add"), operator("_npi_multiply_scalar")
_transpose = operator("transpose")
_slice, _cut, _assign = operator("slice_axis"), operator("slice"), operator("_slice_assign")


class Floats(NamedTuple):
    """The differentiable arrays of one call, in tuples. Other values, such as gradients, may stand in their places.

    queries: a tuple of one array (B, H, Lq, d).
    keys, values: one array each, or two (the past and the new ones): (B, G, L, d) and (B, G, L, dv).
    vector: the vector of the additive score; empty for a dot product.
    bias: the bias of the mask; empty without one.
    """

    queries: tuple[Any, ...]
    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    vector: tuple[Any, ...]
    bias: tuple[Any, ...]

    @property
    def in_a_row(self) -> list[Any]:
        """Return the arrays in one list, in the order of the fields."""
        return list(chain(*self))

    def grouped(self, in_a_row: Sequence[Any]) -> Floats:
        """Return a Floats with tuples of the same lengths, filled in order from a list like that of `in_a_row`."""
        stops = accumulate(map(len, self))
        return Floats(*(tuple(in_a_row[stop - len(kind) : stop]) for kind, stop in zip(self, stops, strict=True)))


@mx.util.use_np
def attend_in_blocks(
    operands: Operands[Array],
    score: Score,
    mask: Mask,
    dropout: float,
    training: bool,
    *,
    query_block: int | None = None,
) -> Array:
    """Return heads (B, H, Lq, dv), without ever storing all scores (B, H, Lq, Lk).

    Args:
        operands: queries (B, H, Lq, d), keys (B, G, L, d) and values (B, G, L, dv). Keys and values are tuples
            of one array, or of two: those of the KV cache and the new ones.
        score, mask: the score function and the mask of the call.
        dropout, training: the rate of dropout, which acts only if `training` is True.
        query_block: how many queries to compute at once. None: as many as fit in the memory budget.
    """
    queries, keys, values = operands
    if any(x.size == 0 for x in (queries, *keys, *values)):
        return _without_elements(operands, score, mask, dropout, training)
    rules = Rules(mask, score, dropout if training else 0.0, _seed(mask, dropout, training), _dtype(queries))
    batch, heads, query_len, width = queries.shape
    row = _item_size(queries) * sum(part.shape[2] for part in keys) * (1 if score.vector is None else width)
    if query_block is None and batch * heads * query_len * row <= AT_ONCE:
        way: _AtOnce | _HeadByHead = _AtOnce(queries, keys, values, rules)
    else:
        keys, values = (_joined(keys),), (_joined(values),)
        block = query_block or fitting_block(query_len, row, BUDGET)
        way = _HeadByHead(queries, *keys, *values, rules, query_block=block)
    with mx.autograd.pause(train_mode=True):  # in prediction FullyConnected would reorder its weights in place
        output = way.forward()
    floats = Floats((queries,), keys, values, _present(score.vector), _present(mask.bias))

    def backward(cotangents: Sequence[Array], wanted: Sequence[bool]) -> list[Array | None]:
        with mx.autograd.pause(train_mode=True):
            return way.backward(cotangents[0], floats.grouped(wanted)).in_a_row

    record(floats.in_a_row, [output], backward)
    return output


@mx.util.use_np
def _without_elements(operands: Operands[Array], score: Score, mask: Mask, dropout: float, training: bool) -> Array:
    """Heads where a size is 0, by the functions of the stages: the blocked backward pass fails on empty arrays."""
    queries, keys, values = operands.queries, _joined(operands.keys), _joined(operands.values)
    if score.vector is None:
        similarity = dot_score(queries, keys, score.scale)
    else:
        similarity = additive_score(queries, keys, score.vector)
    weights = masked_softmax(add_bias(cap(similarity, score), mask), mask)
    return weighted_sum(drop(weights, mask, dropout, training), values)


def _joined(parts: Sequence[Array]) -> Array:
    """Keys or values (B, G, Lk, width), joined from their parts."""
    return parts[0] if len(parts) == 1 else mx.np.concatenate(parts, axis=2)


def _present(array: Array | None) -> tuple[Array, ...]:
    return () if array is None else (array,)


def _seed(mask: Mask, dropout: float, training: bool) -> int | None:
    """The seed of this call's dropout, from MXNet's random state; None without dropout or with a keep-mask."""
    if mask.keep is not None or dropout == 0.0 or not training:
        return None
    with mx.autograd.pause():
        return int(mx.np.random.randint(0, 2**31 - 1, size=(1,), ctx=mask.ctx).asnumpy()[0])


class Rules(NamedTuple):
    """The mask, score function and dropout of a call. The method `of` combines them for one block.

    dropout: the rate of dropout; 0 outside training.
    seed: the seed of dropout's random numbers; None if dropout draws none.
    dtype: the name of the scores' dtype.
    """

    mask: Mask
    score: Score
    dropout: float
    seed: int | None
    dtype: str

    @property
    def differ_by_head(self) -> bool:
        """Return whether the mask may differ from head to head."""
        sources = (self.mask.allowed, self.mask.bias)
        return any(source is not None and source.shape[1] > 1 for source in sources)

    def of(self, block: Block | None) -> BlockAttention:
        """Return the BlockAttention of a block. `block=None` means the whole call as one block."""
        mask = part_of(self.mask._replace(keep=None), block)
        keep = self._keep(mask.shape, block)
        return BlockAttention(mask.shape, self.score, exclusion_of(mask), mask.bias, keep, self.dropout)

    def of_next_head(self, attention: BlockAttention, block: Block) -> BlockAttention:
        """Return the BlockAttention of a block. `attention` (the previous head's) is reused if heads share a mask."""
        if self.differ_by_head:
            return self.of(block)
        drops = self.mask.keep is not None or self.seed is not None
        return replace(attention, keep=self._keep(attention.shape, block)) if drops else attention

    def _keep(self, shape: tuple[int, ...], block: Block | None) -> Array | None:
        """(rows, keys): 1 where dropout keeps a weight of the block, which has this shape; None without dropout.

        The backward pass draws the random numbers again, so they depend only on the seed and the block.
        """
        rows, keep = math.prod(shape[:3]), self.mask.keep
        if keep is not None:
            return (keep if block is None else cut(keep, block)).astype(self.dtype).reshape(rows, -1)
        if self.seed is None:
            return None
        counter = [0, 0, 0, 0] if block is None else [0, *(part.start for part in block[:3])]
        random = np.random.Generator(np.random.Philox(key=self.seed, counter=counter))
        kept = random.random((rows, shape[3]), dtype=np.float32) >= self.dropout
        return to_array(kept, self.dtype, self.mask.ctx)


class _AtOnce:
    """All items and heads in one block of three axes, the query heads of a group folded into its queries."""

    def __init__(self, queries: Array, keys: Sequence[Array], values: Sequence[Array], rules: Rules) -> None:
        batch, groups = keys[0].shape[:2]
        self.shape = queries.shape
        self.key_shapes, self.value_shapes = [x.shape for x in keys], [x.shape for x in values]
        self.scale = rules.score.scale
        self.queries = view(_times(queries.detach(), scalar=self.scale), (batch * groups, -1, queries.shape[3]))
        self.keys, self.values = ([view(x.detach(), (-1, *x.shape[2:])) for x in parts] for parts in (keys, values))
        self.attention = rules.of(None)

    def forward(self) -> Array:
        """Heads (B, H, Lq, dv)."""
        heads = self.attention.forward(self.queries, self.keys, self.values)
        return view(heads, (*self.shape[:3], heads.shape[2]))

    def backward(self, cotangent: Array, wanted: Floats) -> Floats:
        """Return the gradients, from the `cotangent` (B, H, Lq, dv) of the heads; None for the bias's if not wanted."""
        cotangent = view(cotangent, (*self.queries.shape[:2], cotangent.shape[3]))
        found = self.attention.backward(cotangent, self.queries, self.keys, self.values)
        bias = self.attention.bias
        if bias is not None:
            is_wanted = any(wanted.bias)
            bias = _summed_to(view(found.scores, self.attention.shape), bias.shape) if is_wanted else None
        return Floats(
            (view(_times(found.queries, scalar=self.scale), self.shape),),
            tuple(view(x, shape) for x, shape in zip(found.keys, self.key_shapes, strict=True)),
            tuple(view(x, shape) for x, shape in zip(found.values, self.value_shapes, strict=True)),
            _present(found.vector),
            (bias,) if wanted.bias else (),
        )


class _HeadByHead:
    """One head of one item at a time, in blocks of queries, each against the keys that it may reach."""

    def __init__(self, queries: Array, keys: Array, values: Array, rules: Rules, *, query_block: int) -> None:
        self.queries, self.keys, self.values = queries.detach(), keys.detach(), values.detach()
        self.flat_queries, self.flat_keys = _flat(self.queries), _flat(self.keys)
        self.query_len, (self.key_len, self.value_width) = queries.shape[2], values.shape[2:]  # asked of MXNet once
        self.rules, self.query_block = rules, query_block
        self.ahead = 0

    def forward(self) -> Array:
        """Heads (B, H, Lq, dv)."""
        shape = (*self.queries.shape[:3], self.value_width)
        heads = mx.np.zeros(shape, self.queries.dtype, ctx=self.queries.ctx)
        turned, outputs = _flat(self._turned()), _flat(heads)
        for head, group, block, attention in self._blocks():
            q, k, v = self._inputs(turned, head, group, block)
            attention.forward(q, [k], [v], out=_rows(outputs, head, self.query_len, block.queries))
            self._wait(attention, heads)
        return heads

    def backward(self, cotangent: Array, wanted: Floats) -> Floats:
        """Return the gradients, from the `cotangent` (B, H, Lq, dv) of the heads; None for the bias's if not wanted."""
        d_queries, d_keys, d_values = _zeros(self.queries), _zeros(self.keys), _zeros(self.values)
        d_vector = None if self.rules.score.vector is None else _zeros(self.rules.score.vector)
        d_bias = _zeros(self.rules.mask.bias) if any(wanted.bias) else None
        flat_queries, flat_keys, flat_values = _flat(d_queries), _flat(d_keys), _flat(d_values)
        turned, cotangents = _flat(self._turned()), _flat(cotangent)
        for head, group, block, attention in self._blocks():
            q, k, v = self._inputs(turned, head, group, block)
            own = attention.backward(_rows(cotangents, head, self.query_len, block.queries), q, [k], [v])
            into = _rows(flat_queries, head, self.query_len, block.queries)
            _times(own.queries, scalar=self.rules.score.scale, out=into)
            for total, addend in ((flat_keys, own.keys[0]), (flat_values, _transpose(own.values[0]))):
                into = _rows(total, group, self.key_len, block.keys)
                _add(into, addend, out=into)
            self._wait(attention, d_queries)
            if d_bias is not None:
                begin, end = _corners(block, d_bias.shape)
                so_far = _cut(d_bias, begin=begin, end=end)
                so_far = _add(so_far, _summed_to(view(own.scores, attention.shape), so_far.shape))
                _assign(d_bias, so_far, begin=begin, end=end, out=d_bias)
            if d_vector is not None:
                _add(d_vector, own.vector, out=d_vector)
        return Floats((d_queries,), (d_keys,), (d_values,), _present(d_vector), (d_bias,) if wanted.bias else ())

    def _wait(self, attention: BlockAttention, result: Array) -> None:
        """Wait for `result` if the operators since the last wait hold more than RUN_AHEAD bytes of scores."""
        self.ahead += math.prod(attention.shape) * _item_size(result)
        if self.ahead > RUN_AHEAD:
            result.wait_to_read()
            self.ahead = 0

    def _inputs(self, turned: Array, head: int, group: int, block: Block) -> tuple[Array, Array, Array]:
        """Scaled queries (n, d), keys (m, d) and values (dv, m) of a block; `turned` has all values, transposed."""
        values = row_range(turned, group * self.value_width, (group + 1) * self.value_width)
        if block.keys.stop - block.keys.start < self.key_len:
            values = _slice(values, axis=1, begin=block.keys.start, end=block.keys.stop)
        queries = _rows(self.flat_queries, head, self.query_len, block.queries)
        queries = _times(queries, scalar=self.rules.score.scale)  # a block at a time: a copy of all would take memory
        return queries, _rows(self.flat_keys, group, self.key_len, block.keys), values

    def _turned(self) -> Array:
        """The values, transposed: (B, G, dv, Lk)."""
        return _transpose(self.values, axes=(0, 1, 3, 2))

    def _blocks(self) -> Iterator[tuple[int, int, Block, BlockAttention]]:
        """For each block: its head and group, both counted through all items, the block itself, and its attention.

        Blocks that lengths or positions exclude completely are left out.
        """
        (batch, heads), groups = self.queries.shape[:2], self.keys.shape[1]
        reach = self.rules.mask.reach
        for item in range(batch):
            items = slice(item, item + 1)
            for rows in query_blocks(self.query_len, self.query_block):
                cols = slice(0, self.key_len) if reach is None else reach.keys(items, rows)
                if cols.start == cols.stop:
                    continue
                attention = None
                for head in range(heads):
                    block = Block(items, slice(head, head + 1), rows, cols)
                    attention = self.rules.of_next_head(attention, block) if attention else self.rules.of(block)
                    yield item * heads + head, item * groups + head * groups // heads, block, attention


def _flat(x: Array) -> Array:
    """(B, heads, L, width) -> (B * heads * L, width), a view: one slice of it is a block of one head."""
    return view(x, (-1, x.shape[3]))


def _rows(x: Array, head: int, length: int, part: slice) -> Array:
    """The rows `part` of a head in an array that `_flat` returned; `length` is L."""
    return row_range(x, head * length + part.start, head * length + part.stop)


def _corners(block: Block, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where a block begins and ends in an array of this shape, which is broadcast along its axes of size 1."""
    within = place(block, shape)
    return tuple(part.start or 0 for part in within), tuple(part.stop or 1 for part in within)


def _zeros(like: Array) -> Array:
    return mx.np.zeros(like.shape, like.dtype, ctx=like.ctx)


def _dtype(x: Array) -> str:
    return np.dtype(x.dtype).name


def _item_size(x: Array) -> int:
    return np.dtype(x.dtype).itemsize


def _summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """The sum of x (B, H, Lq, Lk) over the axes along which an array of this shape was broadcast."""
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] != 1)
    return mx.np.sum(x, axis=axes, keepdims=True) if axes else x
