"""Attention block by block, between the projections: `heads` without all Lq x Lk scores in memory.

Every array of a block has the axes (B, G, R, Lq, ...), each of its full size or 1: R = H / G are the query heads
that share a key head, so nothing is repeated for them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import PrecisionLike
from jax import Array, lax
from jax.typing import DTypeLike

from backends.jax.ops.attention import cap, joined
from backends.jax.ops.masks import Mask, additive_bias, allowed_keys, has_key
from mha_core.call import blocks

BUDGET = 2**22
"""Bytes of scores in a block: they stay in the second-level caches of two cores while they are used."""

KEY_STEPS = 4
"""Into how many parts the keys are cut, of which a block leaves out those at both ends that no query may attend to."""

SMALLEST_STEP = 64
"""Keys below which leaving a part of them out gains nothing."""


class Attended(NamedTuple):
    """What a call gives that nobody asks for weights: the output (B, Lq, Do), and the present if asked for."""

    output: Array
    present: tuple[Array, Array] | None


class Settings(NamedTuple):
    """What is the same for all blocks, and no array."""

    softcap: float | None
    rate: float
    precision: PrecisionLike


class Block(NamedTuple):
    """The arrays of a block of queries, or of all of them; or their tangents, None for what has none.

    queries: (B, G, R, Lq, d), scaled.
    vector: (1, 1, 1, 1, S), of the additive score; None for a dot product.
    keys, values: (B, G, 1, 1, d, Lk), (B, G, 1, 1, dv, Lk), in parts that stand one after the other.
    mask: arrays (1 or B, 1 or G, 1 or R, 1 or Lq, 1 or Lk).
    rng, number: what dropout draws from, and integers (B, G, 1, Lq, 1) that tell rows apart; None if it does not draw.
    """

    queries: Array
    vector: Array | None
    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    mask: Mask
    rng: Array | None = None
    number: Array | None = None

    def map_keys(self, change: Callable[[Array], Array]) -> Block:
        """The same with `change(array)` for every array that has an axis for the keys, the last one."""
        keys, values, mask = jax.tree.map(change, (self.keys, self.values, self.mask))
        return self._replace(keys=keys, values=values, mask=mask)


def attend_in_blocks(
    queries: Array,
    keys: tuple[Array, ...],
    vector: Array | None,
    values: tuple[Array, ...],
    mask: Mask,
    dropout: nn.Dropout,
    deterministic: bool,
    *,
    softcap: float | None = None,
    precision: PrecisionLike = "highest",
    query_block: int | None = None,
) -> Array:
    """The stage `heads` (B, H, Lq, dv).

    Args:
        queries: (B, H, Lq, d), already scaled; for the additive score, of the width S of its hidden layer.
        keys, values: (B, G, Lk, d or S), (B, G, Lk, dv), in parts of which the first ones may be a past.
        mask: of the call.
        vector: (S,) of the additive score; None for a dot product.
        dropout, deterministic: dropout's module, and whether it is off.
        softcap, precision: as in the layer.
        query_block: how many queries to compute at once. None: as many as the budget has room for.
    """
    batch, num_heads, query_len, width = queries.shape
    groups, value_width = values[0].shape[1], values[0].shape[-1]
    key_len = sum(part.shape[2] for part in keys)
    if 0 in (batch, query_len, key_len):
        return jnp.zeros((batch, num_heads, query_len, value_width), values[0].dtype)

    itemsize = jnp.promote_types(queries.dtype, jnp.float32).itemsize * (1 if vector is None else width)
    bytes_per_query = key_len * itemsize * num_heads // groups
    chunks = (query_block, 1, 1) if query_block else _chunks(batch, groups, query_len, bytes_per_query)
    if chunks[0] < query_len:
        keys, values = (joined(keys),), (joined(values),)

    def grouped(x: Array) -> Array:
        if x.shape[1] == 1:
            return x[:, :, None]
        return x.reshape(x.shape[0], groups, num_heads // groups, *x.shape[2:])

    rate, rng, number = (0.0 if deterministic else dropout.rate), None, None
    if rate and mask.keep is None:
        rng = dropout.make_rng("dropout")
        number = jnp.arange(batch * groups * query_len).reshape(batch, groups, 1, query_len, 1)
    everything = Block(
        grouped(queries),
        None if vector is None else vector.reshape(1, 1, 1, 1, -1),
        tuple(part.swapaxes(2, 3)[:, :, None, None] for part in keys),
        tuple(part.swapaxes(2, 3)[:, :, None, None] for part in values),
        jax.tree.map(grouped, mask._replace(padding=None, past_padding=None)),
        rng,
        number,
    )

    def attend(block: Block) -> Array:
        return _attend(Settings(softcap, rate, precision), block)[0]

    for axis, chunk in zip((3, 1, 0), chunks, strict=True):  # the innermost loop first
        attend = partial(_in_chunks, attend, axis, chunk)
    heads = attend(everything)
    return heads.reshape(batch, num_heads, query_len, value_width)


def _chunks(batch: int, groups: int, query_len: int, bytes_per_query: int) -> tuple[int, int, int]:
    """How many queries, groups of heads, and items to compute at once: as many as the budget has room for."""
    of_item = bytes_per_query * query_len * groups
    return (
        blocks.query_block(query_len, bytes_per_query, BUDGET),
        groups if of_item <= BUDGET else 1,
        batch if of_item * batch <= BUDGET else 1,
    )


def _in_chunks(attend: Callable[[Block], Array], axis: int, chunk: int, block: Block) -> Array:
    """The heads of a block, computed for so many indices of an axis at a time, one after the other."""
    size = block.queries.shape[axis]
    if chunk >= size:
        return attend(block)
    leaves, tree = jax.tree.flatten(block)
    cut = [leaf.ndim > 4 and leaf.shape[axis] == size for leaf in leaves]
    count = size // chunk

    def chunks(x: Array) -> Array:
        """(count, ..., chunk, ...)."""
        whole = lax.slice_in_dim(x, 0, count * chunk, axis=axis)
        return jnp.moveaxis(whole.reshape(*x.shape[:axis], count, chunk, *x.shape[axis + 1 :]), axis, 0)

    def replaced(parts: list[Array]) -> Block:
        """The block with these in place of the arrays that are cut."""
        others = iter(parts)
        return jax.tree.unflatten(tree, [next(others) if is_cut else x for x, is_cut in zip(leaves, cut, strict=True)])

    to_cut = [leaf for leaf, is_cut in zip(leaves, cut, strict=True) if is_cut]
    heads = lax.map(lambda parts: attend(replaced(parts)), [chunks(leaf) for leaf in to_cut])
    heads = jnp.moveaxis(heads, 0, axis)
    heads = heads.reshape(*heads.shape[:axis], count * chunk, *heads.shape[axis + 2 :])
    if count * chunk == size:
        return heads
    rest = attend(replaced([lax.slice_in_dim(leaf, count * chunk, size, axis=axis) for leaf in to_cut]))
    return jnp.concatenate([heads, rest], axis=axis)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend(settings: Settings, block: Block) -> tuple[Array, Array]:
    """The heads (B, G, R, Lq, dv) of a block, and logsumexp (B, G, R, Lq, 1) of its scores, 0 in rows without a key."""
    # The checkpoint keeps what depends on the mask alone inside the loops: JAX would compute it before them, for all.
    return jax.checkpoint(partial(_within_reach, partial(_forward, settings)))(block)


@_attend.defjvp
def _attend_jvp(settings: Settings, primals: tuple[Block], tangents: tuple[Block]) -> tuple[Any, Any]:
    """Scores are computed once more, forwards and, as this is linear in the tangents, backwards: nothing is kept."""
    (block,), (moved,) = primals, tangents
    heads, logsumexp = _attend(settings, block)
    moved = Block(moved.queries, moved.vector, moved.keys, moved.values, Mask(bias=moved.mask.bias))

    def tangent(block: Block, moved: Block, logsumexp: Array) -> tuple[Array, Array]:
        return _within_reach(partial(_tangent, settings, logsumexp), block, moved)

    return (heads, logsumexp), jax.checkpoint(tangent)(block, moved, logsumexp)


def _within_reach(compute: Callable[..., tuple[Array, Array]], *given: Block) -> tuple[Array, Array]:
    """`compute(positions, *given)`, without the keys at both ends that none of the queries may attend to.

    Args:
        compute: gives two arrays (B, G, R, Lq, ...) from the positions of the keys and the blocks.
        given: a block; and its tangents, if `compute` takes them.
    """
    block = given[0]
    mask, key_len = block.mask, sum(part.shape[-1] for part in block.keys)
    step = -(-key_len // KEY_STEPS)
    if mask.stop is None or len(block.keys) > 1 or step < SMALLEST_STEP:
        return compute(jnp.arange(key_len), *given)
    first = 0 if mask.first is None else mask.first
    start = jnp.where(first < mask.stop, first, key_len).min()
    end = jnp.where(first < mask.stop, mask.stop, 0).max()

    def compute_with(size: int, *given: Block) -> tuple[Array, Array]:
        begin = jnp.minimum(start, key_len - size)

        def part(x: Array) -> Array:
            return x if x.shape[-1] == 1 else lax.dynamic_slice_in_dim(x, begin, size, axis=-1)

        return compute(begin + jnp.arange(size), *(block.map_keys(part) for block in given))

    sizes = (min(count * step, key_len) for count in range(KEY_STEPS + 1))
    steps = -(-jnp.maximum(end - start, 0) // step)
    return lax.switch(steps, [partial(compute_with, size) for size in sizes], *given)


def _forward(settings: Settings, positions: Array, block: Block) -> tuple[Array, Array]:
    """`_attend`, of a block whose keys stand at these positions (Lk,)."""
    allowed, open_rows = _openness(block.mask, positions)
    scores = _where(allowed, _scores(settings, block), -jnp.inf)
    # Rows without a key are given a finite maximum and sum: no NaN that would have to be repaired.
    highest = _where(open_rows, scores.max(axis=-1, keepdims=True, initial=-jnp.inf), 0.0)
    exponentials = _where(allowed, jnp.exp(scores - highest), 0.0)
    total = _where(open_rows, exponentials.sum(axis=-1, keepdims=True), 1.0)
    heads = _weighted_sum(settings, exponentials, _kept(settings, block, scores.shape), block.values) / total
    return heads.astype(block.values[0].dtype), highest + jnp.log(total)


def _tangent(settings: Settings, logsumexp: Array, positions: Array, block: Block, moved: Block) -> tuple[Array, Array]:
    """The tangents of heads and logsumexp, linear in `moved`, the tangents of the block."""

    def scores_of(queries: Array, vector: Array | None, keys: tuple[Array, ...], bias: Array | None) -> Array:
        mask = block.mask._replace(bias=bias)
        return _scores(settings, block._replace(queries=queries, vector=vector, keys=keys, mask=mask))

    def sources(block: Block) -> tuple[Any, ...]:
        return block.queries, block.vector, block.keys, block.mask.bias

    allowed, _ = _openness(block.mask, positions)
    scores, moved_scores = jax.jvp(scores_of, sources(block), sources(moved))
    weights = _where(allowed, jnp.exp(_where(allowed, scores, -jnp.inf) - logsumexp), 0.0)
    moved_weights = weights * _where(allowed, moved_scores, 0.0)
    moved_sum = moved_weights.sum(axis=-1, keepdims=True)
    moved_weights = _where(allowed, moved_weights - weights * moved_sum, 0.0)
    kept = _kept(settings, block, scores.shape)
    heads = _weighted_sum(settings, moved_weights, kept, block.values)
    heads += _weighted_sum(settings, weights, kept, moved.values)
    return heads.astype(block.values[0].dtype), moved_sum


def _openness(mask: Mask, positions: Array) -> tuple[Array | None, Array | None]:
    """Which keys are allowed, and which rows have any; None, and no work, for a mask without sources."""
    if not mask.excludes:
        return None, None
    allowed = allowed_keys(mask, positions)
    return allowed, has_key(mask, allowed)


def _where(condition: Array | None, x: Array, other: float) -> Array:
    return x if condition is None else jnp.where(condition, x, other)


def _scores(settings: Settings, block: Block) -> Array:
    """(B, G, R, Lq, Lk), in at least float32: half precision is too coarse for a sum of exponentials."""
    parts = [_similarity(block.queries, part[:, :, 0, 0], block.vector, settings.precision) for part in block.keys]
    scores = cap(parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1), settings.softcap)
    bias = additive_bias(block.mask)
    return scores if bias is None else scores + bias.astype(scores.dtype)


def _similarity(queries: Array, keys: Array, vector: Array | None, precision: PrecisionLike) -> Array:
    """(B, G, R, Lq, Lk) of queries (B, G, R, Lq, d) and keys (B, G, d, Lk)."""
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    if vector is not None:
        hidden = jnp.tanh(queries[..., None, :] + keys.swapaxes(2, 3)[:, :, None, None])  # (B, G, R, Lq, Lk, S)
        return jnp.matmul(hidden, vector.reshape(-1), precision=precision, preferred_element_type=wide)
    batch, groups, shared, query_len, width = queries.shape
    rows = queries.reshape(batch, groups, shared * query_len, width)
    scores = _product(rows, keys, 0, precision, wide)
    return scores.reshape(batch, groups, shared, query_len, -1)


def _kept(settings: Settings, block: Block, shape: tuple[int, ...]) -> Array | None:
    """Bool (B, G, R, Lq, Lk), the weights that dropout keeps; drawn once more, it is the same. None without dropout."""
    if block.rng is None or block.number is None:
        return block.mask.keep
    rng = jax.random.fold_in(block.rng, block.number.reshape(-1)[0])
    return jax.random.bernoulli(rng, 1.0 - settings.rate, shape)


def _weighted_sum(settings: Settings, weights: Array, kept: Array | None, values: tuple[Array, ...]) -> Array:
    """(B, G, R, Lq, dv) of weights (B, G, R, Lq, Lk), after dropout, and values (B, G, 1, 1, dv, Lk) in parts."""
    weights = weights if kept is None else weights * kept / (1.0 - settings.rate)
    batch, groups, shared, query_len, key_len = weights.shape
    rows = weights.reshape(batch, groups, shared * query_len, key_len)
    heads: Any = 0.0
    start = 0
    for part in values:
        of_part = lax.slice_in_dim(rows, start, start + part.shape[-1], axis=3).astype(part.dtype)
        start += part.shape[-1]
        heads += _product(of_part, part[:, :, 0, 0], 1, settings.precision, weights.dtype)
    return heads.reshape(batch, groups, shared, query_len, -1)


def _product(a: Array, b: Array, axis: int, precision: PrecisionLike, dtype: DTypeLike) -> Array:
    """The matrix products of a (B, G, n, m) and b, (B, G, m, l) for axis 0, (B, G, l, m) for axis 1.

    Without the axes of a single item and head, XLA finds the better order of the products in the backward pass.
    """
    keywords: Any = {"precision": precision, "preferred_element_type": dtype}
    if a.shape[:2] == (1, 1):
        return lax.dot_general(a[0, 0], b[0, 0], (((1,), (axis,)), ((), ())), **keywords)[None, None]
    return lax.dot_general(a, b, (((3,), (2 + axis,)), ((0, 1), (0, 1))), **keywords)
