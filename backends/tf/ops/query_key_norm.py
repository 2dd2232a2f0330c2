"""Query-key norm as a Keras layer; see `mha_core.parts.query_key_norm`."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from backends.tf.ops.framework import Shape, shape_of
from mha_core.parts.query_key_norm import Order, QueryKeyNorm, mean_axes

Unnormed = Callable[[Any, Order], Any]


def unnormed(x: tf.Tensor, order: Order) -> tf.Tensor:
    """Return x: a layer without a norm calls this in its place."""
    return x


class HeadNorm(keras.Layer):
    """A norm of a layer's projected queries (`q_norm`) or keys (`k_norm`).

    Args:
        settings: the kind of norm, its eps and its place, before or after rotation.
        size: the shape of weight and bias, (d,) or (heads * d,); None without them.
        **kwargs: the keywords of every Keras layer. `dtype` is that of the parameters; x is not cast to it.
    """

    def __init__(self, settings: QueryKeyNorm, size: int | None, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.settings = settings
        self._size = size
        self.weight = self.bias = None

    def build(self, x_shape: Shape = None) -> None:
        """Make the parameters; their size does not depend on the shape of x."""
        settings = self.settings
        if self._size is not None:
            start = keras.initializers.Constant(settings.start)
            self.weight = self.add_weight(shape=(self._size,), initializer=start, name="weight")
            if settings.bias:
                self.bias = self.add_weight(shape=(self._size,), initializer="zeros", name="bias")

    def __call__(self, x: tf.Tensor, order: Order) -> tf.Tensor:
        """Return x (B, heads, L, d), normalized if `order` ("before" or "after" rotation) equals `settings.order`."""
        if self.settings.order != order:
            return x
        return super().__call__(x)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """(B, heads, L, d): x normed."""
        settings = self.settings
        axes = mean_axes(settings)
        # Half precision is too coarse for a mean of squares.
        exact = tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32)
        if settings.kind == "layer":
            exact = exact - tf.reduce_mean(exact, axes, keepdims=True)
        eps = settings.eps_in(float(np.finfo(exact.dtype.as_numpy_dtype).tiny))
        normed = exact * tf.math.rsqrt(tf.reduce_mean(tf.square(exact), axes, keepdims=True) + eps)
        if settings.product == "dtype":
            normed = tf.cast(normed, x.dtype)
        if self.weight is not None:
            normed = normed * (settings.offset + self._by_head(self.weight, normed))
        if self.bias is not None:
            normed = normed + self._by_head(self.bias, normed)
        return tf.cast(normed, x.dtype)

    def _by_head(self, parameter: keras.Variable, x: tf.Tensor) -> tf.Tensor:
        """A weight or bias in the dtype of x, (d,) or (heads, 1, d): it broadcasts with x (B, heads, L, d)."""
        tensor = tf.cast(parameter, x.dtype)
        return tensor if self.settings.weight == "shared" else tf.reshape(tensor, (shape_of(x)[1], 1, -1))
