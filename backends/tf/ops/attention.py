"""Attention in TensorFlow's own operations, between the projections: the stages `scores` to `heads`.

Shapes as in `mha_core.stages`: queries (B, H, Lq, d), keys (B, G, Lk, d), values (B, G, Lk, dv).
"""

from __future__ import annotations

from typing import NamedTuple

import keras
import tensorflow as tf

from backends.tf.ops.heads import repeat_kv_heads
from backends.tf.ops.masks import Mask, additive_bias, allowed_keys
from backends.tf.ops.products import matmul, widened
from mha_core.config import AttentionConfig


class Score(NamedTuple):
    """A layer's score function, in a form that can score one block of queries at a time.

    scale: the factor of a dot product. softcap: c in c * tanh(score / c), or None.
    vector: (S,), w of the additive score w . tanh(q + k), for q and k projected to width S; None for a dot product.
    """

    scale: float = 1.0
    vector: tf.Tensor | None = None
    softcap: float | None = None

    def capped(self, config: AttentionConfig) -> Score:
        """This score with the softcap of a config."""
        return Score(self.scale, self.vector, config.softcap)


def zero_padding(x: tf.Tensor, mask: Mask) -> tf.Tensor:
    """Return x, new keys or values (B, L, width) or (B, G, L, width), with 0 in rows that no query may attend to."""
    return x if mask.padding is None else _zero_rows(x, mask.padding)


def after_past(past: tf.Tensor | None, new: tf.Tensor, mask: Mask) -> tf.Tensor:
    """Return past and new keys (or values) as one (B, G, Lk, width), with 0 in past rows no query may attend to."""
    return parts_of(past, new, mask, join=True)[0]


def parts_of(past: tf.Tensor | None, new: tf.Tensor, mask: Mask, *, join: bool) -> tuple[tf.Tensor, ...]:
    """Return (past, new), with 0 at padding of `past`. With `join`: (both joined,). Without a past: (new,)."""
    if past is None:
        return (new,)
    if mask.past_padding is not None:
        past = _zero_rows(past, mask.past_padding)
    return (tf.concat([past, new], axis=2),) if join else (past, new)


def _zero_rows(x: tf.Tensor, padding: tf.Tensor) -> tf.Tensor:
    """0 in the rows of x (B, L, width) or (B, G, L, width) where padding (B, L) says so."""
    rows = padding[..., tf.newaxis] if x.shape.rank == 3 else padding[:, tf.newaxis, :, tf.newaxis]
    return tf.where(rows, tf.zeros((), x.dtype), x)


def dot_score(queries: tf.Tensor, keys: tf.Tensor, scale: float | tf.Tensor) -> tf.Tensor:
    """Return q.k * scale, (B, H, Lq, Lk). The queries are scaled before the product, so that float16 overflows less."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    return matmul(queries * scale, keys, transpose_b=True)


def additive_score(queries: tf.Tensor, keys: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
    """Return w . tanh(q + k), (B, H, Lq, Lk), for queries q and keys k that are projected to width S."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    hidden = tf.tanh(queries[:, :, :, tf.newaxis] + keys[:, :, tf.newaxis])  # (B, H, Lq, Lk, S)
    return tf.cast(tf.tensordot(widened(hidden), widened(vector), axes=1), queries.dtype)


def cap(similarity: tf.Tensor, rule: AttentionConfig | Score) -> tf.Tensor:
    """Return c * tanh(similarity / c), (B, H, Lq, Lk), where c is `rule.softcap`. If c is None, return `similarity`."""
    c = rule.softcap
    return similarity if c is None else c * tf.tanh(similarity / c)


def cap_gradient(d_capped: tf.Tensor, capped: tf.Tensor, rule: AttentionConfig | Score) -> tf.Tensor:
    """Return the gradient of the similarity. `d_capped` is the gradient of `capped`, the result of `cap`."""
    c = rule.softcap
    return d_capped if c is None else d_capped * (1.0 - (capped / c) ** 2)


def add_bias(scores: tf.Tensor, mask: Mask) -> tf.Tensor:
    """Return (B, H, Lq, Lk): the scores plus the mask's additive bias, if it has one."""
    bias = additive_bias(mask)
    return scores if bias is None else scores + bias


def masked_softmax(scores: tf.Tensor, mask: Mask) -> tf.Tensor:
    """Return (B, H, Lq, Lk): softmax over the allowed keys, 0 at the other keys. A row without an allowed key is all 0.

    Such a row gets finite scores before the softmax and zeros after it, so no NaN arises, forward or backward.
    tf.nn.softmax is not used: with oneDNN on a CPU, in float32, it turns a row with a NaN score into zeros.
    """
    allowed = allowed_keys(mask)
    # In at least float32: half precision is too coarse for a sum of exponentials.
    exact = tf.cast(scores, tf.float64 if scores.dtype == tf.float64 else tf.float32)
    zero = tf.zeros((), exact.dtype)
    if allowed is not None:
        has_key = tf.reduce_any(allowed, axis=-1, keepdims=True)
        exact = tf.where(has_key, tf.where(allowed, exact, -float("inf")), zero)
    highest = tf.stop_gradient(tf.reduce_max(exact, axis=-1, keepdims=True))
    exponentials = tf.exp(exact - highest)
    softmax = exponentials / tf.reduce_sum(exponentials, axis=-1, keepdims=True)
    if allowed is not None:
        softmax = tf.where(allowed, softmax, zero)
    return tf.cast(softmax, scores.dtype)


def drop(weights: tf.Tensor, mask: Mask, dropout: keras.layers.Dropout, training: bool) -> tf.Tensor:
    """Return the weights (B, H, Lq, Lk) after dropout by `mask.keep` (True = keep), or at random if that is None."""
    if mask.keep is not None:
        return weights * tf.cast(mask.keep, weights.dtype) / (1.0 - dropout.rate)
    return dropout(weights, training=training)


def weighted_sum(weights: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """(B, H, Lq, dv)."""
    return matmul(weights, repeat_kv_heads(values, weights.shape[1]))
