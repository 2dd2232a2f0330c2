"""A call of the fast path computed in chunks: by loops over its items and groups of heads together, and its queries."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from backends.jax.fast.block import Floats, Starts
from mha_core.call.blocks import query_block as fitting_block

BUDGET = 2**22
"""Bytes of scores in one block; the second-level caches of two cores hold this much."""

ITEMS, GROUPS, QUERIES = 0, 1, 3
"""The axes of items, groups and queries in the arrays of a block."""

Compute = Callable[[Starts, Floats], Array]
"""(Starts, Floats) of a part of a call -> its heads (B, G, R, Lq, dv)."""


class Chunks(NamedTuple):
    """The numbers of queries, groups (a key head and its query heads) and batch items that are computed at once."""

    queries: int
    groups: int
    items: int


def chunks_of(batch: int, groups: int, query_len: int, bytes_per_query: int) -> Chunks:
    """Return how many queries, groups and batch items to compute at once within the memory budget.

    `bytes_per_query` is the memory for the scores of one query in one group. Queries: the most of one group that fit.
    Groups: all if the scores of a batch item fit, else one. Batch items: all if the scores of the call fit, else one.
    """
    of_item = bytes_per_query * query_len * groups
    return Chunks(
        fitting_block(query_len, bytes_per_query, BUDGET),
        groups if of_item <= BUDGET else 1,
        batch if of_item * batch <= BUDGET else 1,
    )


def in_chunks(compute: Compute, chunks: Chunks, floats: Floats) -> Array:
    """Return the heads of a whole call. They are computed chunk by chunk, then joined.

    `compute(starts, floats)` returns the heads of one chunk. `starts`: axis -> index where the chunk begins.
    """
    compute = partial(_in_a_loop, compute, (QUERIES,), chunks.queries)  # the innermost
    # The gradient of a bias of all items or of all groups is a sum over the others: these have a loop of their own.
    mixed = floats.bias is not None and floats.bias.shape[:2] not in ((1, 1), floats.queries.shape[:2])
    if chunks.items == chunks.groups == 1 and not mixed:
        return _in_a_loop(compute, (ITEMS, GROUPS), 1, {}, floats)
    compute = partial(_in_a_loop, compute, (GROUPS,), chunks.groups)
    return _in_a_loop(compute, (ITEMS,), chunks.items, {}, floats)


def _in_a_loop(compute: Compute, axes: tuple[int, ...], most: int, starts: Starts, floats: Floats) -> Array:
    """`compute` of at most `most` indices of one axis at a time, or of one of two neighbouring axes.

    All chunks are of one size, so that one loop computes them all: if need be, the last one begins before the one
    before it ends, and its heads are not used where they are of both.
    """
    first, after = axes[0], axes[-1] + 1
    sizes = floats.queries.shape[first:after]
    size = math.prod(sizes)
    count = -(-size // most)
    if count == 1:
        return compute(starts, floats)
    chunk = -(-size // count)
    before, total = (count - 1) * chunk, count * chunk  # indices of the chunks before the last one, and of all
    leaves, tree = jax.tree.flatten(floats)
    is_cut = [leaf.shape[first:after] == sizes for leaf in leaves]

    def pieces_of(x: Array) -> Array:
        """Return the chunks of x, in an axis before its own."""
        if total > size:
            x = _joined(x, first, (0, before), (size - chunk, size))
        x = x.reshape(*x.shape[:first], count, *(1,) * (len(axes) - 1), chunk, *x.shape[after:])
        return jnp.moveaxis(x, first, 0)

    def of_chunk(given: tuple[tuple[Array, ...], list[Array]]) -> Array:
        """Return the heads of one chunk; `given`: where it begins on each axis, and its pieces of the cut arrays."""
        begins, pieces = given[0], iter(given[1])
        parts = [next(pieces) if cut else leaf for leaf, cut in zip(leaves, is_cut, strict=True)]
        return compute({**starts, **dict(zip(axes, begins, strict=True))}, jax.tree.unflatten(tree, parts))

    number = lax.iota(int, count)
    begins = (
        (lax.min(number * chunk, size - chunk),)
        if len(axes) == 1
        else (lax.div(number, sizes[1]), lax.rem(number, sizes[1]))
    )
    heads = lax.map(of_chunk, (begins, [pieces_of(leaf) for leaf, cut in zip(leaves, is_cut, strict=True) if cut]))
    heads = jnp.moveaxis(heads, 0, first)
    heads = heads.reshape(*heads.shape[:first], *((total,) if len(axes) == 1 else sizes), *heads.shape[after + 1 :])
    return heads if total == size else _joined(heads, first, (0, before), (total - size + before, total))


def _joined(x: Array, axis: int, *parts: tuple[int, int]) -> Array:
    """These parts of x, each from its first index of the axis to before its second, one after the other."""
    return lax.concatenate([lax.slice_in_dim(x, *part, axis=axis) for part in parts], axis)
