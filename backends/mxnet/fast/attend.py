"""Attention block by block in MXNet, between the projections: the stages `scores` to `heads` in one step.

A block is computed and used up before the next one, and the backward pass computes it anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from backends.mxnet.fast.block import Array, Scoring, Softening, exclusion_of
from backends.mxnet.ops.attention import add_bias, additive_score, cap, drop, masked_softmax, weighted_sum
from backends.mxnet.ops.framework import mx, to_array
from backends.mxnet.ops.heads import repeat_kv_heads
from backends.mxnet.ops.masks import Block, Mask
from backends.mxnet.ops.operators import operator, record, view
from mha_core.call.blocks import query_block as fitting_block
from mha_core.call.blocks import query_blocks

BUDGET = 2**21
"""Bytes of scores in one block: so much stays in the caches between the product, the softmax and the next product."""

AT_ONCE = 2**22
"""Bytes of scores of a whole call up to which all heads are computed together: there, operators cost more by number."""

RUN_AHEAD = 2**25
"""Bytes of scores after which Python waits for the operators: it would run ahead of them, and take memory for all."""

_add, _copy = operator("_npi_add"), operator("_copy")
_transpose = operator("transpose")
_slice = operator("slice_axis")


class Attended(NamedTuple):
    """What a layer's `attend` gives: the output (B, Lq, Do), and the pair keys, values if it was asked for."""

    output: Array
    present: tuple[Array, Array] | None


@mx.util.use_np
def attend_in_blocks(
    queries: Array,
    keys: Sequence[Array],
    values: Sequence[Array],
    mask: Mask,
    scoring: Scoring,
    rate: float = 0.0,
    query_block: int | None = None,
) -> Array:
    """(B, H, Lq, dv).

    Args:
        queries, keys, values: (B, H, Lq, d), (B, G, Lk, d), (B, G, Lk, dv), scaled as the scores are to be; for the
            additive score all S wide. Keys and values in parts that stand one after the other.
        mask, scoring: of the whole call.
        rate: of the dropout, which acts in training.
        query_block: queries of one block. None: as many as `BUDGET` says.
    """
    if any(x.size == 0 for x in (queries, *keys, *values)):
        return _of_nothing(queries, _whole(keys), _whole(values), mask, scoring, rate)
    softening = _Softenings(mask, scoring, rate if mx.autograd.is_training() else 0.0, _seed(mask, rate, queries.ctx))
    batch, heads, query_len, width = queries.shape
    row = _item_size(queries) * sum(part.shape[2] for part in keys) * (1 if scoring.vector is None else width)
    if query_block is None and batch * heads * query_len * row <= AT_ONCE:
        way: _AtOnce | _HeadByHead = _AtOnce(queries, keys, values, softening)
    else:
        keys, values = [_whole(keys)], [_whole(values)]
        way = _HeadByHead(queries, keys[0], values[0], softening, query_block or fitting_block(query_len, row, BUDGET))
    with mx.autograd.pause(train_mode=True):  # in prediction FullyConnected would reorder its weights in place
        output = way.forward()
    inputs = [queries, *keys, *values]
    extra = {"bias": mask.bias, "vector": scoring.vector}
    inputs += [array for array in extra.values() if array is not None]

    def backward(cotangents: Sequence[Array], wanted: Sequence[bool]) -> list[Array | None]:
        bias = None
        if mask.bias is not None and wanted[1 + 2 * len(keys)]:
            bias = mx.np.zeros(mask.bias.shape, mask.bias.dtype, ctx=mask.bias.ctx)
        with mx.autograd.pause(train_mode=True):
            found, vector = way.backward(cotangents[0], bias)
        return [*found, *([bias] if mask.bias is not None else []), *([vector] if scoring.vector is not None else [])]

    record(inputs, [output], backward)
    return output


@mx.util.use_np
def _of_nothing(queries: Array, keys: Array, values: Array, mask: Mask, scoring: Scoring, rate: float) -> Array:
    """The same by the stages, which have the gradients of arrays without elements right."""
    if scoring.vector is None:
        scores = mx.np.matmul(queries, repeat_kv_heads(keys, queries.shape[1]).swapaxes(2, 3))
    else:
        scores = additive_score(queries, keys, scoring.vector)
    weights = masked_softmax(add_bias(cap(scores, scoring.softcap), mask), mask)
    return weighted_sum(drop(weights, mask.keep, rate), values)


def _whole(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else mx.np.concatenate(parts, axis=2)


def _seed(mask: Mask, rate: float, ctx: mx.Context) -> int | None:
    """Drawn from MXNet's random state, for a dropout without a keep-mask in training; else None."""
    if mask.keep is not None or rate == 0.0 or not mx.autograd.is_training():
        return None
    with mx.autograd.pause():
        return int(mx.np.random.randint(0, 2**31 - 1, size=(1,), ctx=ctx).asnumpy()[0])


class _Softenings(NamedTuple):
    """What makes the `Softening` of every block."""

    mask: Mask
    scoring: Scoring
    rate: float
    seed: int | None

    @property
    def differ(self) -> bool:
        """Whether heads differ in what happens to their scores."""
        sources = (self.mask.allowed, self.mask.bias)
        several = any(source is not None and source.shape[1] > 1 for source in sources)
        return several or self.mask.keep is not None or self.seed is not None

    def of(self, block: Block, like: Array) -> Softening:
        bias = None if self.mask.bias is None else block.of(self.mask.bias)
        exclusion, keep = exclusion_of(self.mask, block, like.ctx), self._keep(block, like)
        return Softening(block.shape, self.scoring, exclusion, bias, keep, self.rate)

    def _keep(self, block: Block, like: Array) -> Array | None:
        """The same for the same block each time: random numbers are drawn again rather than kept."""
        rows = int(np.prod(block.shape[:3]))
        if self.mask.keep is not None:
            return block.of(self.mask.keep).astype(like.dtype).reshape(rows, -1)
        if self.seed is None:
            return None
        counter = [0, block.items.start, block.heads.start, block.queries.start]
        random = np.random.Generator(np.random.Philox(key=self.seed, counter=counter))
        kept = random.random((rows, block.shape[3]), dtype=np.float32) >= self.rate
        return to_array(kept, np.dtype(like.dtype).name, like.ctx)


class _AtOnce:
    """All items and heads in one block of three axes, the query heads of a group folded into its queries."""

    def __init__(self, queries: Array, keys: Sequence[Array], values: Sequence[Array], softenings: _Softenings) -> None:
        batch, groups = keys[0].shape[:2]
        self.shape = queries.shape
        self.queries = view(queries.detach(), (batch * groups, -1, queries.shape[3]))
        self.keys, self.values = ([view(x.detach(), (-1, *x.shape[2:])) for x in parts] for parts in (keys, values))
        lengths = (*queries.shape[:3], sum(part.shape[2] for part in keys))
        self.part = softenings.of(Block(*(slice(0, length) for length in lengths)), queries)
        self.part_shapes = [x.shape for x in (*keys, *values)]

    def forward(self) -> Array:
        heads = self.part.forward(self.queries, self.keys, self.values)
        return view(heads, (*self.shape[:3], heads.shape[2]))

    def backward(self, cotangent: Array, bias: Array | None) -> tuple[list[Array], Array | None]:
        """The gradients of queries, keys and values, and of the vector; that of the bias is added to `bias`."""
        cotangent = view(cotangent, (*self.queries.shape[:2], cotangent.shape[3]))
        found = self.part.backward(cotangent, self.queries, self.keys, self.values)
        if bias is not None:
            bias[:] = _summed_to(view(found.scores, self.part.shape), bias.shape)
        others = [view(x, shape) for x, shape in zip((*found.keys, *found.values), self.part_shapes, strict=True)]
        return [view(found.queries, self.shape), *others], found.vector


class _HeadByHead:
    """One head of one item at a time, in blocks of queries, each against the keys that it may reach."""

    def __init__(self, queries: Array, keys: Array, values: Array, softenings: _Softenings, block: int) -> None:
        self.queries, self.keys, self.values = queries.detach(), keys.detach(), values.detach()
        self.flat = _flat(self.queries), _flat(self.keys)
        self.ahead = 0
        self.softenings, self.block = softenings, block

    def forward(self) -> Array:
        shape = (*self.queries.shape[:3], self.values.shape[3])
        heads = mx.np.zeros(shape, self.queries.dtype, ctx=self.queries.ctx)
        turned, outputs = _flat(self._turned()), _flat(heads)
        for head, group, block, part in self._blocks():
            q, k, v = self._inputs(turned, head, group, block)
            part.forward(q, [k], [v], out=_rows(outputs, head, shape[2], block.queries))
            self._wait(block, heads)
        return heads

    def backward(self, cotangent: Array, bias: Array | None) -> tuple[list[Array], Array | None]:
        """As `_AtOnce.backward`."""
        found = [mx.np.zeros(x.shape, x.dtype, ctx=x.ctx) for x in (self.queries, self.keys, self.values)]
        vector = self.softenings.scoring.vector
        vector = None if vector is None else mx.np.zeros(vector.shape, vector.dtype, ctx=vector.ctx)
        turned, cotangents = _flat(self._turned()), _flat(cotangent)
        from_queries, from_keys, from_values = map(_flat, found)
        query_len, key_len = self.queries.shape[2], self.keys.shape[2]
        for head, group, block, part in self._blocks():
            q, k, v = self._inputs(turned, head, group, block)
            own = part.backward(_rows(cotangents, head, query_len, block.queries), q, [k], [v])
            _copy(own.queries, out=_rows(from_queries, head, query_len, block.queries))
            for total, addend in ((from_keys, own.keys[0]), (from_values, _transpose(own.values[0]))):
                into = _rows(total, group, key_len, block.keys)
                _add(into, addend, out=into)
            self._wait(block, found[0])
            if bias is not None:
                at = block.place(bias)
                bias[at] = bias[at] + _summed_to(view(own.scores, block.shape), bias[at].shape)
            if vector is not None:
                _add(vector, own.vector, out=vector)
        return found, vector

    def _wait(self, block: Block, result: Array) -> None:
        """Wait for a result where Python is too far ahead."""
        self.ahead += block.shape[2] * block.shape[3] * _item_size(result)
        if self.ahead > RUN_AHEAD:
            result.wait_to_read()
            self.ahead = 0

    def _inputs(self, turned: Array, head: int, group: int, block: Block) -> tuple[Array, Array, Array]:
        """Queries (n, d), keys (m, d) and values (dv, m) of a block."""
        width, (query_len, key_len) = self.values.shape[3], (self.queries.shape[2], self.keys.shape[2])
        values = turned[group * width : (group + 1) * width]
        if block.shape[3] < key_len:
            values = _slice(values, axis=1, begin=block.keys.start, end=block.keys.stop)
        return (
            _rows(self.flat[0], head, query_len, block.queries),
            _rows(self.flat[1], group, key_len, block.keys),
            values,
        )

    def _turned(self) -> Array:
        """The values (B, G, dv, Lk)."""
        return _transpose(self.values, axes=(0, 1, 3, 2))

    def _blocks(self) -> Iterator[tuple[int, int, Block, Softening]]:
        """The head and its group, both counted through all items, the block, and what happens to its scores.

        Without the blocks that lengths or positions exclude whole.
        """
        batch, heads, query_len, _ = self.queries.shape
        groups, key_len = self.keys.shape[1:3]
        reach = self.softenings.mask.reach
        for item in range(batch):
            items = slice(item, item + 1)
            for rows in query_blocks(query_len, self.block):
                cols = slice(0, key_len) if reach is None else reach.keys(items, rows)
                if cols.start == cols.stop:
                    continue
                part = None
                for head in range(heads):
                    block = Block(items, slice(head, head + 1), rows, cols)
                    if part is None or self.softenings.differ:
                        part = self.softenings.of(block, self.queries)
                    yield item * heads + head, item * groups + head * groups // heads, block, part


def _flat(x: Array) -> Array:
    """(B, heads, L, width) -> (B * heads * L, width), a view: one slice of it is a block of one head."""
    return view(x, (-1, x.shape[3]))


def _rows(x: Array, head: int, length: int, rows: slice) -> Array:
    return x[head * length + rows.start : head * length + rows.stop]


def _item_size(x: Array) -> int:
    return np.dtype(x.dtype).itemsize


def _summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """The sum of x (B, H, Lq, Lk) over the axes along which an array of this shape was broadcast."""
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] != 1)
    return mx.np.sum(x, axis=axes, keepdims=True) if axes else x
