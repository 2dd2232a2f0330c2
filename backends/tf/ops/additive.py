"""The additive score as a Keras layer with its parameters, for attention with heads or without."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from backends.tf.ops.attention import additive_score
from backends.tf.ops.framework import Shape


class AdditiveScore(keras.Layer):
    """w . tanh(A q + C k): (B, H, Lq, Dq) and (B, G, Lk, Dk) -> (B, H, Lq, Lk)."""

    def __init__(self, score_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.score_dim = score_dim
        self.query = keras.layers.Dense(score_dim, use_bias=False, name="query", dtype=self.dtype_policy)
        self.key = keras.layers.Dense(score_dim, use_bias=False, name="key", dtype=self.dtype_policy)

    def build(self, queries_shape: Shape, keys_shape: Shape) -> None:
        self.query.build(queries_shape)
        self.key.build(keys_shape)
        # As keras.layers.AdditiveAttention draws its `scale`.
        self.vector = self.add_weight(shape=(self.score_dim,), initializer="glorot_uniform", name="vector")

    def call(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        return additive_score(self.query(queries), self.key(keys), self.vector)
