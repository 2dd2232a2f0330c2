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
from mha_core.config import AttentionConfig


class Score(NamedTuple):
    """A layer's score function, in a form that can score one block of queries at a time.

    scale: the factor of a dot product. softcap: c in c * tanh(score / c), or None.
    vector: (S,), w of the additive score w . tanh(q + k), for q and k projected to width S; None for a dot product.
    """

    scale: float = 1.0
    vector: Array | None = None
    softcap: float | None = None

    def capped(self, config: AttentionConfig) -> Score:
        """This score with the softcap of a config."""
        return Score(self.scale, self.vector, config.softcap)


def zero_padding(x: Array, mask: Mask) -> Array:
    """Return x, new keys or values (B, L, width) or (B, G, L, width), with 0 in rows that no query may attend to."""
    return x if mask.padding is None else _zero_rows(x, mask.padding)


def after_past(past: Array | None, new: Array, mask: Mask) -> Array:
    """Return past and new keys (or values) as one (B, G, Lk, width), with 0 in past rows no query may attend to."""
    return parts_of(past, new, mask, join=True)[0]


def parts_of(past: Array | None, new: Array, mask: Mask, *, join: bool) -> tuple[Array, ...]:
    """Return (past, new), with 0 at padding of `past`. With `join`: (both joined,). Without a past: (new,)."""
    if past is None:
        return (new,)
    if mask.past_padding is not None:
        past = _zero_rows(past, mask.past_padding)
    parts = past.astype(new.dtype), new
    return (joined(parts),) if join else parts


def joined(parts: tuple[Array, ...]) -> Array:
    """Return (B, G, Lk, width): the parts (B, G, L, width) one after the other."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=2)


def _zero_rows(x: Array, padding: Array) -> Array:
    """0 in the rows of x (B, L, width) or (B, G, L, width) where padding (B, L) says so."""
    return jnp.where(padding[..., None] if x.ndim == 3 else padding[:, None, :, None], 0.0, x)


def dot_score(queries: Array, keys: Array, scale: float, *, precision: PrecisionLike = "highest") -> Array:
    """Return q.k * scale, (B, H, Lq, Lk). The queries are scaled before the product, so that float16 overflows less."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    return jnp.matmul(queries * scale, keys.swapaxes(-2, -1), precision=precision)


def additive_score(queries: Array, keys: Array, vector: Array, *, precision: PrecisionLike = "highest") -> Array:
    """Return w . tanh(q + k), (B, H, Lq, Lk), for queries q and keys k that are projected to width S."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    return jnp.matmul(jnp.tanh(queries[:, :, :, None] + keys[:, :, None]), vector, precision=precision)


def cap(similarity: Array, rule: AttentionConfig | Score) -> Array:
    """Return c * tanh(similarity / c), (B, H, Lq, Lk), where c is `rule.softcap`. If c is None, return `similarity`."""
    c = rule.softcap
    return similarity if c is None else c * jnp.tanh(similarity / c)


def add_bias(scores: Array, mask: Mask) -> Array:
    """Return (B, H, Lq, Lk): the scores plus the mask's additive bias, if it has one."""
    bias = additive_bias(mask)
    return scores if bias is None else scores + bias


def masked_softmax(scores: Array, mask: Mask) -> Array:
    """Return (B, H, Lq, Lk): softmax over the allowed keys, 0 at the other keys. A row without an allowed key is all 0.

    Such a row gets finite scores before the softmax and zeros after it, so no NaN arises, forward or backward.
    """
    if scores.shape[-1] == 0:  # the maximum of no keys is an error
        return scores
    allowed = allowed_keys(mask)
    # In at least float32: half precision is too coarse for a sum of exponentials.
    exact = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    if allowed is None:
        return jax.nn.softmax(exact, axis=-1).astype(scores.dtype)
    has_key = allowed.any(axis=-1, keepdims=True)
    exact = jnp.where(has_key, jnp.where(allowed, exact, -jnp.inf), 0.0)
    return jnp.where(allowed, jax.nn.softmax(exact, axis=-1), 0.0).astype(scores.dtype)


def drop(weights: Array, mask: Mask, dropout: nn.Dropout, training: bool) -> Array:
    """Return the weights (B, H, Lq, Lk) after dropout by `mask.keep` (True = keep), or at random if that is None."""
    if mask.keep is not None:
        return weights * mask.keep / (1.0 - dropout.rate)
    return dropout(weights, deterministic=not training)


def weighted_sum(weights: Array, values: Array, *, precision: PrecisionLike = "highest") -> Array:
    """Return weights @ values, (B, H, Lq, dv), in the values' dtype, even if a bias has made the weights wider."""
    values = repeat_kv_heads(values, weights.shape[1])
    return jnp.matmul(weights.astype(values.dtype), values, precision=precision)
