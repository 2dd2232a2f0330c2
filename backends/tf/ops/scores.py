"""The scores that a layer may have: a dot product, or the additive score with its parameters.

Each is called with queries and keys for all scores at once. The fast path takes its `operands`, and scores blocks of
them as `in_blocks` says.
"""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from backends.tf.ops.attention import Score, additive_score, dot_score
from backends.tf.ops.framework import Shape
from backends.tf.ops.products import Dense


@dataclass(frozen=True)
class DotScore:
    """A score function, q.k * scale: (B, H, Lq, d) and (B, G, Lk, d) -> (B, H, Lq, Lk)."""

    scale: float | tf.Tensor

    def build(self, queries_shape: Shape, keys_shape: Shape) -> None:
        """Nothing: a dot product has no parameters."""

    def __call__(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        return dot_score(queries, keys, self.scale)

    def operands(self, queries: tf.Tensor, keys: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Return queries and parts of keys unchanged."""
        return queries, keys

    def in_blocks(self) -> Score:
        """Return this score function as a `Score`, which can score one block of queries at a time."""
        return Score(self.scale)


class AdditiveScore(keras.Layer):
    """A score function with parameters, w . tanh(A q + C k): (B, H, Lq, Dq) and (B, G, Lk, Dk) -> (B, H, Lq, Lk)."""

    def __init__(self, score_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.score_dim = score_dim
        self.query = Dense(score_dim, use_bias=False, name="query", dtype=self.dtype_policy)
        self.key = Dense(score_dim, use_bias=False, name="key", dtype=self.dtype_policy)

    def build(self, queries_shape: Shape, keys_shape: Shape) -> None:
        self.query.build(queries_shape)
        self.key.build(keys_shape)
        # As keras.layers.AdditiveAttention draws its `scale`.
        self.vector = self.add_weight(shape=(self.score_dim,), initializer="glorot_uniform", name="vector")

    def call(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        return additive_score(self.query(queries), self.key(keys), self.vector)

    def operands(self, queries: tf.Tensor, keys: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Return A q (B, H, Lq, S), and a tuple with C k (B, G, L, S) for each array of keys. All blocks share them."""
        return self.query(queries), tuple(map(self.key, keys))

    def in_blocks(self) -> Score:
        """Return this score function as a `Score`, which can score one block of queries at a time."""
        return Score(vector=tf.cast(self.vector, self.compute_dtype))
