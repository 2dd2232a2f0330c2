"""Attention in JAX's own operations, between the projections: the stages `scores` to `heads`.

Shapes as in `mha_core.stages`: queries (B, H, Lq, d), keys (B, G, Lk, d), values (B, G, Lk, dv).
"""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import PrecisionLike
from jax import Array

from backends.jax.ops.heads import repeat_kv_heads
from backends.jax.ops.masks import Mask, additive_bias, allowed_keys


class Stages(NamedTuple):
    """The seven stages of one call, as JAX arrays."""

    queries: Array
    keys: Array
    values: Array
    scores: Array
    weights: Array
    heads: Array
    output: Array


def zero_padding(x: Array, mask: Mask) -> Array:
    """(B, L, width) or (B, G, L, width): 0 in the rows of new keys that nobody can attend to, whatever stood there."""
    return x if mask.padding is None else _zero_rows(x, mask.padding)


def with_past(past: Array | None, new: Array, mask: Mask) -> tuple[Array, ...]:
    """The keys or values of the past, 0 where nobody can attend to them, if there is one; and the new ones."""
    if past is None:
        return (new,)
    if mask.past_padding is not None:
        past = _zero_rows(past, mask.past_padding)
    return past.astype(new.dtype), new


def after_past(past: Array | None, new: Array, mask: Mask) -> Array:
    """(B, G, Lk, width): the keys or values of the past, and then the new ones."""
    return joined(with_past(past, new, mask))


def joined(parts: tuple[Array, ...]) -> Array:
    """(B, G, Lk, width) of the parts that stand one after the other."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=2)


def _zero_rows(x: Array, padding: Array) -> Array:
    """0 in the rows of x (B, L, width) or (B, G, L, width) where padding (B, L) says so."""
    return jnp.where(padding[..., None] if x.ndim == 3 else padding[:, None, :, None], 0.0, x)


def dot_score(queries: Array, keys: Array, scale: float, precision: PrecisionLike = "highest") -> Array:
    """(B, H, Lq, Lk): q.k * scale. The scale goes on the queries, where float16 has room for it."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    return jnp.matmul(queries * scale, keys.swapaxes(-2, -1), precision=precision)


def additive_score(queries: Array, keys: Array, vector: Array, precision: PrecisionLike = "highest") -> Array:
    """(B, H, Lq, Lk): w . tanh(q + k), of queries and keys that are already S wide."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    return jnp.matmul(jnp.tanh(queries[:, :, :, None] + keys[:, :, None]), vector, precision=precision)


def cap(scores: Array, softcap: float | None) -> Array:
    """(B, H, Lq, Lk): c * tanh(scores / c), of a softcap c."""
    return scores if softcap is None else softcap * jnp.tanh(scores / softcap)


def add_bias(scores: Array, mask: Mask) -> Array:
    """(B, H, Lq, Lk): the scores plus the additive bias, if there is one."""
    bias = additive_bias(mask)
    return scores if bias is None else scores + bias


def masked_softmax(scores: Array, mask: Mask) -> Array:
    """(B, H, Lq, Lk): softmax over the allowed keys; exactly 0 elsewhere, and in rows without any.

    A row without an allowed key is given finite scores before the softmax, and zeros after it:
    forward and backward never see a NaN that would have to be repaired.
    """
    if scores.shape[-1] == 0:  # the maximum of no keys is an error
        return scores
    allowed = allowed_keys(mask, jnp.arange(scores.shape[-1]))
    has_key = allowed.any(axis=-1, keepdims=True)
    # In at least float32: half precision is too coarse for a sum of exponentials.
    exact = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    exact = jnp.where(has_key, jnp.where(allowed, exact, -jnp.inf), 0.0)
    return jnp.where(allowed, jax.nn.softmax(exact, axis=-1), 0.0).astype(scores.dtype)


def drop(weights: Array, mask: Mask, dropout: nn.Dropout, deterministic: bool) -> Array:
    """(B, H, Lq, Lk): the weights after dropout, with the mask's keep-mask if it has one."""
    if mask.keep is not None:
        return weights * mask.keep / (1.0 - dropout.rate)
    return dropout(weights, deterministic=deterministic)


def weighted_sum(weights: Array, values: Array, precision: PrecisionLike = "highest") -> Array:
    """(B, H, Lq, dv), in the dtype of the values, which a wider additive bias does not change."""
    values = repeat_kv_heads(values, weights.shape[1])
    return jnp.matmul(weights.astype(values.dtype), values, precision=precision)
