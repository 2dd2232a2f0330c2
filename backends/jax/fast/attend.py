"""Attention in JAX from `queries`, `keys` and `values` to `heads`, without an array of all scores.

`chunks.py` cuts a call into blocks, by loops over its items, groups of heads and queries; `block.py` computes each.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import PrecisionLike
from jax import Array, lax

from backends.jax.fast.block import Constants, Floats, Static, attend_block
from backends.jax.fast.chunks import GROUPS, ITEMS, QUERIES, Chunks, Starts, chunks_of, in_chunks
from backends.jax.ops.attention import Score, joined
from backends.jax.ops.framework import has_symbols
from backends.jax.ops.masks import Mask
from mha_core.call.blocks import Operands


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
    """Return heads (B, H, Lq, dv), without ever storing all scores (B, H, Lq, Lk).

    Args:
        operands: queries (B, H, Lq, d), keys (B, G, L, d) and values (B, G, L, dv). Keys and values are tuples
            of one array, or of two: those of the KV cache and the new ones.
        score, mask: the score function and the mask of the call.
        dropout, training: the dropout layer, which acts only if `training` is True.
        query_block: the most queries to compute at once. None: as many as fit in the memory budget.
        precision: the `precision` argument of `jax.numpy.matmul`.
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
    whole = has_symbols(batch, query_len, mask.key_len)  # no number of chunks is of every size
    if whole:
        chunks = Chunks(query_len, groups, batch)
    else:
        chunks = Chunks(query_block, 1, 1) if query_block else chunks_of(batch, groups, query_len, bytes_per_query)
    if chunks.queries < query_len:
        operands = Operands(operands.queries, (joined(operands.keys),), (joined(operands.values),))
    rate, rng = (dropout.rate if training else 0.0), None
    if rate and mask.keep is None:
        rng = dropout.make_rng("dropout")
    in_groups = partial(_in_groups, groups=groups)
    mask = jax.tree.map(in_groups, mask.replace(padding=None, past_padding=None))
    floats = Floats(
        in_groups(operands.queries),
        tuple(lax.expand_dims(part.swapaxes(2, 3), (2, 3)) for part in operands.keys),
        tuple(lax.expand_dims(part.swapaxes(2, 3), (2, 3)) for part in operands.values),
        None if score.vector is None else score.vector.reshape(1, 1, 1, 1, -1),
        mask.bias,
    )
    static = Static(score._replace(vector=None), rate, precision)
    mask = mask.replace(bias=None)

    def of_part(starts: Starts, part: Floats) -> Array:
        number = None
        if rng is not None:
            number = (starts.get(ITEMS, 0) * groups + starts.get(GROUPS, 0)) * query_len + starts.get(QUERIES, 0)
        return attend_block(static, part, Constants(mask, rng, number, starts))

    heads = of_part({}, floats) if whole else in_chunks(of_part, chunks, floats)
    return heads.reshape(batch, num_heads, query_len, value_width)


def _in_groups(x: Array, groups: int) -> Array:
    """(1 or B, 1 or H, ...) -> (1 or B, 1 or G, 1 or R, ...)."""
    if x.shape[1] == 1:
        return x[:, :, None]
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
