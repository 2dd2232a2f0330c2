"""Attention in JAX from `queries`, `keys` and `values` to `heads`, without an array of all scores.

A call is cut here, by loops over its items, groups of heads and queries; `block.py` computes each block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import PrecisionLike
from jax import Array, lax

from backends.jax.fast.block import Constants, Floats, Static, attend_block
from backends.jax.ops.attention import Score, joined
from backends.jax.ops.masks import Mask, part_of
from mha_core.call.blocks import Block, Operands, query_blocks
from mha_core.call.blocks import query_block as fitting_block

BUDGET = 2**22
"""Bytes of scores in one block; the second-level caches of two cores hold this much."""

ITEMS, GROUPS, QUERIES = 0, 1, 3
"""The axes of items, groups and queries in the arrays of a block."""


class Chunks(NamedTuple):
    """How many queries, groups of heads and items are computed at once."""

    queries: int
    groups: int
    items: int


Attend = Callable[[Floats, Constants], Array]
"""(Floats, Constants) of a part of a call -> its heads (B, G, R, Lq, dv)."""


def attend_in_blocks(
    operands: Operands[Array],
    score: Score,
    mask: Mask,
    dropout: nn.Dropout,
    training: bool,
    *,
    query_block: int | None = None,
    precision: PrecisionLike = "highest",
) -> Array:
    """Heads (B, H, Lq, dv), without an array of all scores.

    Args:
        operands: queries (B, H, Lq, d); keys (B, G, L, d) and values (B, G, L, dv), each in one part, or in a past
            and the new ones, which are joined only where there are several blocks to read them.
        score: how the operands are scored.
        mask: of the call.
        dropout: the layer; it acts in training alone.
        training: whether this is training.
        query_block: how many queries to compute at once. None: as many as fit the budget.
        precision: as in the layer.
    """
    batch, num_heads, query_len, width = operands.queries.shape
    groups, value_width = operands.values[0].shape[1], operands.values[0].shape[-1]
    if 0 in (batch, query_len, mask.key_len):
        return jnp.zeros((batch, num_heads, query_len, value_width), operands.values[0].dtype)

    of_score = jnp.promote_types(operands.queries.dtype, jnp.float32).itemsize
    if score.vector is None:
        operands = operands._replace(queries=operands.queries * score.scale)
    else:
        of_score *= width  # each has a hidden layer
    bytes_per_query = mask.key_len * of_score * num_heads // groups
    chunks = Chunks(query_block, 1, 1) if query_block else _chunks(batch, groups, query_len, bytes_per_query)
    if chunks.queries < query_len:
        operands = Operands(operands.queries, (joined(operands.keys),), (joined(operands.values),))
    rate, rng, number = (dropout.rate if training else 0.0), None, None
    if rate and mask.keep is None:
        rng = dropout.make_rng("dropout")
        number = jnp.arange(batch * groups * query_len).reshape(batch, groups, 1, query_len, 1)

    attend: Attend = partial(attend_block, Static(score._replace(vector=None), rate, precision))
    for axis, chunk in ((QUERIES, chunks.queries), (GROUPS, chunks.groups), (ITEMS, chunks.items)):
        attend = partial(_in_chunks, attend, axis, chunk)  # the innermost loop first

    def heads_of(block: Block) -> Array:
        part = jax.tree.map(partial(_in_groups, groups=groups), part_of(mask, block))
        floats = _floats(operands, score, part.bias, groups, block)
        of_rows = None if number is None else number[:, :, :, block.queries]
        return attend(floats, Constants(part.replace(bias=None), rng, of_rows))

    whole = max(chunks.queries, query_len - query_len % chunks.queries)  # queries that whole chunks cover
    heads = [
        heads_of(Block(slice(0, batch), slice(0, num_heads), queries, slice(0, mask.key_len)))
        for queries in query_blocks(query_len, whole)  # and the rest
    ]
    together = heads[0] if len(heads) == 1 else jnp.concatenate(heads, axis=QUERIES)
    return together.reshape(batch, num_heads, query_len, value_width)


def _chunks(batch: int, groups: int, query_len: int, bytes_per_query: int) -> Chunks:
    """As many queries as fit the budget; all groups if that fits, else one, and the same for items."""
    of_item = bytes_per_query * query_len * groups
    return Chunks(
        fitting_block(query_len, bytes_per_query, BUDGET),
        groups if of_item <= BUDGET else 1,
        batch if of_item * batch <= BUDGET else 1,
    )


def _floats(operands: Operands[Array], score: Score, bias: Array | None, groups: int, block: Block) -> Floats:
    """The Floats of a block of queries; `bias` is the block's own already."""
    queries = operands.queries[block.items, block.heads, block.queries]
    return Floats(
        _in_groups(queries, groups),
        tuple(lax.expand_dims(part.swapaxes(2, 3), (2, 3)) for part in operands.keys),
        tuple(lax.expand_dims(part.swapaxes(2, 3), (2, 3)) for part in operands.values),
        None if score.vector is None else score.vector.reshape(1, 1, 1, 1, -1),
        bias,
    )


def _in_groups(x: Array, groups: int) -> Array:
    """(1 or B, 1 or H, ...) -> (1 or B, 1 or G, 1 or R, ...)."""
    if x.shape[1] == 1:
        return x[:, :, None]
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def _in_chunks(attend: Attend, axis: int, chunk: int, floats: Floats, constants: Constants) -> Array:
    """The heads of `attend`, one chunk after the other: `chunk` indices of `axis` each, a divisor of its size."""
    size = floats.queries.shape[axis]
    if chunk >= size:
        return attend(floats, constants)
    leaves, tree = jax.tree.flatten((floats, constants))
    is_cut = [leaf.ndim > 4 and leaf.shape[axis] == size for leaf in leaves]

    def chunks_of(x: Array) -> Array:
        """X with `axis` split into (count, chunk), and count moved to the front."""
        return jnp.moveaxis(x.reshape(*x.shape[:axis], size // chunk, chunk, *x.shape[axis + 1 :]), axis, 0)

    def attend_to(parts: list[Array]) -> Array:
        """The heads of one chunk; `parts` are its pieces of the arrays that are cut."""
        others = iter(parts)
        of_chunk = [next(others) if cut else leaf for leaf, cut in zip(leaves, is_cut, strict=True)]
        return attend(*jax.tree.unflatten(tree, of_chunk))

    heads = lax.map(attend_to, [chunks_of(leaf) for leaf, cut in zip(leaves, is_cut, strict=True) if cut])
    heads = jnp.moveaxis(heads, 0, axis)
    return heads.reshape(*heads.shape[:axis], size, *heads.shape[axis + 2 :])
