"""Sinusoidal positions as a Keras layer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from backends.tf.framework import describe, spec_errors_kept
from mha_core.checks import check_layer_dtype
from mha_core.config import check_dropout
from mha_core.positions import check_positions, sinusoidal_positions


@keras.saving.register_keras_serializable(package="mha")
class PositionalEncoding(keras.Layer):
    """Adds sinusoidal positions to (B, L, embed_dim), then drops out (see mha_core.sinusoidal_positions).

    >>> import tensorflow as tf
    >>> PositionalEncoding(4)(tf.zeros((1, 2, 4))).numpy()[0, 1]
    array([0.84147096, 0.5403023 , 0.00999983, 0.99995   ], dtype=float32)
    """

    def __init__(self, embed_dim: int, dropout: float = 0.0, max_len: int = 1000, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self._positions = sinusoidal_positions(max_len, embed_dim)  # (max_len, embed_dim)
        self.dropout = keras.layers.Dropout(check_dropout(dropout), autocast=False, dtype=self.dtype_policy)

    @spec_errors_kept()
    def call(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """(B, L, embed_dim) -> (B, L, embed_dim). SpecError if the sequence, its width or dtype does not fit."""
        max_len, embed_dim = self._positions.shape
        check_positions(x.shape[1], x.shape[2], embed_dim=embed_dim, max_len=max_len)
        check_layer_dtype("the input", describe(x).dtype, self.compute_dtype)
        positions = tf.constant(self._positions[: x.shape[1]], x.dtype)
        return self.dropout(x + positions[: tf.shape(x)[1]], training=bool(training))

    def get_config(self) -> dict[str, Any]:
        max_len, embed_dim = self._positions.shape
        return {**super().get_config(), "embed_dim": embed_dim, "dropout": self.dropout.rate, "max_len": max_len}
