"""Clipped projections in TensorFlow; see `mha_core.parts.clip_qkv`."""

from __future__ import annotations

import tensorflow as tf


def clip(x: tf.Tensor, limit: float | None) -> tf.Tensor:
    """X with numbers beyond +-limit replaced by that; x itself without a limit. At the limit, the gradient passes."""
    if limit is None:
        return x
    highest = tf.constant(limit, x.dtype)
    return tf.where(x > highest, highest, tf.where(x < -highest, -highest, x))  # clip_by_value may make a number of NaN
