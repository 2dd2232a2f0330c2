"""Value norm and value scale in TensorFlow; see `mha_core.parts.value_norm`."""

from __future__ import annotations

import tensorflow as tf


def norm_values(x: tf.Tensor, eps: float | None) -> tf.Tensor:
    """The heads x (B, G, L, dv), each divided by the root of its mean square; x itself without eps."""
    if eps is None:
        return x
    # Half precision is too coarse for a mean of squares.
    exact = tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32)
    return tf.cast(exact * tf.math.rsqrt(tf.reduce_mean(tf.square(exact), -1, keepdims=True) + eps), x.dtype)


def scale_values(x: tf.Tensor, scale: float | None) -> tf.Tensor:
    """X * scale; x itself without a scale."""
    return x if scale is None else x * tf.constant(scale, x.dtype)
