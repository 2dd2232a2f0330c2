"""One block of queries: its heads, and their derivatives, for which the scores are computed again.

Every array of a block has the axes (B, G, R, Lq, ...), each of its full size or 1: R = H / G are the query heads
that share a key head, so nothing is repeated for them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.typing import PrecisionLike
from jax import Array, lax
from jax.typing import DTypeLike

from backends.jax.ops.attention import Score, cap
from backends.jax.ops.framework import has_symbols
from backends.jax.ops.masks import Mask, additive_bias, allowed_keys, cut_keys, has_key, with_keys

KEY_STEPS = 4
"""Number of parts of the keys; a block leaves out parts at both ends that none of its queries may attend to."""

SMALLEST_STEP = 64
"""Smallest number of keys in a part: leaving out fewer is not faster."""


Starts = dict[int, Any]
"""Axis -> where a block begins in it, an integer or an Array of one; 0 in an axis that is not there."""


class Static(NamedTuple):
    """The arguments of a call that are not arrays (static in jit). Each combination of them is compiled once.

    score: the layer's score function, without the vector of an additive score.
    rate: the rate of dropout; 0 outside training.
    precision: the `precision` argument of `jax.numpy.matmul`.
    """

    score: Score
    rate: float
    precision: PrecisionLike


class Floats(NamedTuple):
    """The differentiable arrays of a call or of a block (a part of its scores), or the tangents of these arrays.

    queries: (B, G, R, Lq, d), the scaled queries; R = H / G query heads share a key head.
    keys, values: tuples of arrays. Concatenated on the last axis, they are (B, G, 1, 1, d, Lk), (B, G, 1, 1, dv, Lk).
        The two axes of size 1 broadcast against R and Lq of the queries.
    vector: (1, 1, 1, 1, S), the vector of the additive score; None for a dot product.
    bias: (1 or B, 1 or G, 1 or R, 1 or Lq, 1 or Lk), the bias of the mask; None without one.
    """

    queries: Array
    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    vector: Array | None
    bias: Array | None

    def with_keys(self, start: Array, key_len: int) -> Floats:
        """Return these Floats with keys, values and bias cut to the `key_len` keys from `start` on."""
        keys, values, bias = jax.tree.map(lambda x: cut_keys(x, start, key_len), (self.keys, self.values, self.bias))
        return self._replace(keys=keys, values=values, bias=bias)


class Constants(NamedTuple):
    """The arrays of one call, or of one block, that have no gradients.

    mask: the mask without its bias; its arrays are (1 or B, 1 or G, 1 or R, 1 or Lq, 1 or Lk).
    rng, number: the random key of dropout, and an integer that differs from block to block; None without dropout.
    starts: axis -> index in `mask` where the block begins; {} if `mask` is already cut to the block.
    """

    mask: Mask
    rng: Array | None
    number: int | Array | None
    starts: Starts

    def of_block(self, sizes: tuple[int, ...]) -> Constants:
        """Return these Constants with the mask cut to a block of shape `sizes` (B, G, R, Lq) from `starts` on."""

        def cut(x: Array) -> Array:
            axes = [axis for axis in self.starts if x.shape[axis] not in (1, sizes[axis])]
            begins = [self.starts[axis] if axis in axes else 0 for axis in range(x.ndim)]
            lengths = [sizes[axis] if axis in axes else x.shape[axis] for axis in range(x.ndim)]
            return lax.dynamic_slice(x, begins, lengths, allow_negative_indices=False) if axes else x

        return self._replace(mask=jax.tree.map(cut, self.mask), starts={})

    def with_keys(self, start: Array, key_len: int) -> Constants:
        """Return these Constants with the mask cut to the `key_len` keys from `start` on."""
        return self._replace(mask=with_keys(self.mask, start, key_len))


def attend_block(static: Static, floats: Floats, constants: Constants) -> Array:
    """Return the heads (B, G, R, Lq, dv) of a block."""
    return _attend(static, floats, constants)[0]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend(static: Static, floats: Floats, constants: Constants) -> tuple[Array, Array]:
    """The heads (B, G, R, Lq, dv) of a block, and logsumexp (B, G, R, Lq, 1) of its scores, 0 in rows without a key."""
    # The checkpoint keeps what depends on the mask alone inside the loops: JAX would compute it before them, for all.
    return jax.checkpoint(partial(_within_reach, partial(_forward, static)))(floats, constants)


@_attend.defjvp
def _attend_jvp(
    static: Static, primals: tuple[Floats, Constants], tangents: tuple[Floats, Constants]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The derivative, for which the scores are computed again; linear in the tangents, so JAX can transpose it."""
    (floats, constants), (moved, _) = primals, tangents
    heads, logsumexp = _attend(static, floats, constants)

    def tangent(floats: Floats, constants: Constants, moved: Floats, logsumexp: Array) -> tuple[Array, Array]:
        return _within_reach(partial(_tangent, static, logsumexp), floats, constants, moved)

    return (heads, logsumexp), jax.checkpoint(tangent)(floats, constants, moved, logsumexp)


def _within_reach(
    compute: Callable[..., tuple[Array, Array]], floats: Floats, constants: Constants, *moved: Floats
) -> tuple[Array, Array]:
    """`compute(floats, constants, *moved)`, without the keys at both ends that none of the queries may attend to.

    Args:
        compute: gives two arrays (B, G, R, Lq, ...).
        floats, constants: of a block.
        moved: the tangents of the floats, if `compute` takes them.
    """
    constants = constants.of_block(floats.queries.shape[:4])
    mask, key_len = constants.mask, constants.mask.key_len
    step = -(-key_len // KEY_STEPS)
    if mask.stop is None or len(floats.keys) > 1 or has_symbols(key_len) or step < SMALLEST_STEP:
        return compute(floats, constants, *moved)
    first = 0 if mask.first is None else mask.first
    start = jnp.where(first < mask.stop, first, key_len).min()
    end = jnp.where(first < mask.stop, mask.stop, 0).max()

    def compute_with(size: int, *given: Floats | Constants) -> tuple[Array, Array]:
        begin = jnp.minimum(start, key_len - size)
        return compute(*(one.with_keys(begin, size) for one in given))

    sizes = (min(count * step, key_len) for count in range(KEY_STEPS + 1))
    steps = -(-jnp.maximum(end - start, 0) // step)
    return lax.switch(steps, [partial(compute_with, size) for size in sizes], floats, constants, *moved)


def _forward(static: Static, floats: Floats, constants: Constants) -> tuple[Array, Array]:
    """Heads and logsumexp as `_attend` returns them, from all scores of the block."""
    allowed, open_rows = _openness(floats, constants)
    scores = _where(allowed, _scores(static, floats), -jnp.inf)
    # Rows without a key are given a finite maximum and sum, so that no NaN arises.
    highest = _where(open_rows, scores.max(axis=-1, keepdims=True, initial=-jnp.inf), 0.0)
    exponentials = _where(allowed, jnp.exp(scores - highest), 0.0)
    total = _where(open_rows, exponentials.sum(axis=-1, keepdims=True), 1.0)
    kept = _kept(static, constants, scores.shape)
    heads = _weighted_sum(static, exponentials, kept, floats.values) / total
    return heads.astype(floats.values[0].dtype), highest + jnp.log(total)


def _tangent(
    static: Static, logsumexp: Array, floats: Floats, constants: Constants, moved: Floats
) -> tuple[Array, Array]:
    """The tangents of heads and logsumexp, linear in `moved`, the tangents of the floats."""
    allowed, _ = _openness(floats, constants)
    scores, moved_scores = jax.jvp(partial(_scores, static), (floats,), (moved,))
    weights = _where(allowed, jnp.exp(_where(allowed, scores, -jnp.inf) - logsumexp), 0.0)
    moved_weights = weights * _where(allowed, moved_scores, 0.0)
    moved_sum = moved_weights.sum(axis=-1, keepdims=True)
    moved_weights = _where(allowed, moved_weights - weights * moved_sum, 0.0)
    kept = _kept(static, constants, scores.shape)
    heads = _weighted_sum(static, moved_weights, kept, floats.values)
    heads += _weighted_sum(static, weights, kept, moved.values)
    return heads.astype(floats.values[0].dtype), moved_sum


def _openness(floats: Floats, constants: Constants) -> tuple[Array | None, Array | None]:
    """Bool masks of the allowed keys, and of the rows that have one; both None where all keys are allowed."""
    mask = constants.mask.replace(bias=floats.bias)
    allowed = allowed_keys(mask)
    return allowed, None if allowed is None else has_key(mask, allowed)


def _where(condition: Array | None, x: Array, other: float) -> Array:
    """`x` where the condition holds, else `other`; a condition of None holds everywhere."""
    if condition is None:
        return x
    # `jnp.where` is traced anew, as a function of its own, for each shape.
    return lax.select(jnp.broadcast_to(condition, x.shape), x, lax.full_like(x, other))


def _scores(static: Static, floats: Floats) -> Array:
    """(B, G, R, Lq, Lk), in at least float32: half precision is too coarse for a sum of exponentials."""
    queries, vector = floats.queries, floats.vector
    parts = [_similarity(queries, part, vector, static.precision) for part in floats.keys]
    scores = cap(parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1), static.score)
    bias = additive_bias(Mask(scores.shape[-1], bias=floats.bias))
    return scores if bias is None else scores + bias.astype(scores.dtype)


def _similarity(queries: Array, keys: Array, vector: Array | None, precision: PrecisionLike) -> Array:
    """(B, G, R, Lq, Lk) of queries (B, G, R, Lq, d) and keys (B, G, 1, 1, d, Lk)."""
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    if vector is not None:
        hidden = jnp.tanh(queries[..., None, :] + keys.swapaxes(4, 5))  # (B, G, R, Lq, Lk, S)
        return jnp.matmul(hidden, vector.reshape(-1), precision=precision, preferred_element_type=wide)
    scores = _product(_rows(queries), keys.reshape(*keys.shape[:2], *keys.shape[4:]), 0, precision, wide)
    return scores.reshape(*queries.shape[:4], -1)


def _kept(static: Static, constants: Constants, shape: tuple[int, ...]) -> Array | None:
    """Bool (B, G, R, Lq, Lk), the weights that dropout keeps, the same in each call; None without dropout."""
    if constants.rng is None or constants.number is None:
        return constants.mask.keep
    rng = jax.random.fold_in(constants.rng, constants.number)
    return jax.random.bernoulli(rng, 1.0 - static.rate, shape)


def _weighted_sum(static: Static, weights: Array, kept: Array | None, values: tuple[Array, ...]) -> Array:
    """(B, G, R, Lq, dv) of weights (B, G, R, Lq, Lk), after dropout, and values (B, G, 1, 1, dv, Lk) in parts."""
    weights = weights if kept is None else weights * kept / (1.0 - static.rate)
    rows, heads, start = _rows(weights), [], 0
    for part in values:
        stop = start + part.shape[-1]
        of_part = rows if len(values) == 1 else lax.slice_in_dim(rows, start, stop, axis=rows.ndim - 1)
        part = part.reshape(*part.shape[:2], *part.shape[4:])
        heads.append(_product(of_part.astype(part.dtype), part, 1, static.precision, weights.dtype))
        start = stop
    return sum(heads[1:], start=heads[0]).reshape(*weights.shape[:4], -1)


def _rows(x: Array) -> Array:
    """(B, G, R, Lq, n) -> (B, G, R * Lq, n)."""
    batch, groups, shared, query_len, width = x.shape
    return x.reshape(batch, groups, shared * query_len, width)


def _product(a: Array, b: Array, axis: int, precision: PrecisionLike, dtype: DTypeLike) -> Array:
    """The matrix products of a (B, G, n, m) and b, (B, G, m, l) for axis 0, (B, G, l, m) for axis 1.

    Without the axes of a single item and head, XLA finds the better order of the products in the backward pass.
    """
    keywords: Any = {"precision": precision, "preferred_element_type": dtype}
    if a.shape[:2] == (1, 1):
        a, b = (x.reshape(x.shape[2:]) for x in (a, b))
        return lax.dot_general(a, b, (((1,), (axis,)), ((), ())), **keywords)
    return lax.dot_general(a, b, (((3,), (2 + axis,)), ((0, 1), (0, 1))), **keywords)
