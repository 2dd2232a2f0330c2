"""Sinusoidal positions as a Keras layer."""

from typing import Any

import keras
import tensorflow as tf

from backends.tf.ops.framework import as_tensor, cast_by_policy, describe, spec_errors_kept
from mha_core.call.positions import check_encoded, sinusoidal_positions
from mha_core.dtypes import check_dropout


@keras.saving.register_keras_serializable(package="mha")
class PositionalEncoding(keras.Layer):
    """A layer that adds `mha_core.sinusoidal_positions` to x (B, L, embed_dim), and then applies dropout.

    It computes in the dtype of x. If `dtype` was given, x must have it; a mixed policy casts x.

    >>> import tensorflow as tf
    >>> PositionalEncoding(4)(tf.zeros((1, 2, 4))).numpy()[0, 1]
    array([0.84147096, 0.5403023 , 0.00999983, 0.99995   ], dtype=float32)
    """

    def __init__(self, embed_dim: int, dropout: float = 0.0, max_len: int = 1000, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self._allow_non_tensor_positional_args = True  # what is no tensor is for `call` to refuse
        self._convert_input_args = False
        self._given_dtype = self.compute_dtype if kwargs.get("dtype") is not None else None
        self._positions = sinusoidal_positions(max_len, embed_dim)  # (max_len, embed_dim)
        self.dropout = keras.layers.Dropout(check_dropout(dropout), autocast=False, dtype=self.dtype_policy)

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """`call`, as Keras calls it; it sees a tensor in place of an array of NumPy."""
        return super().__call__(cast_by_policy(self, as_tensor(x)), *args, **kwargs)

    @spec_errors_kept()
    def call(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Return x (B, L, embed_dim) plus positions, after dropout. SpecError for a wrong length, width or dtype."""
        max_len, embed_dim = self._positions.shape
        x = as_tensor(x)
        check_encoded(x, embed_dim=embed_dim, max_len=max_len, layer_dtype=self._given_dtype, describe=describe)
        positions = tf.constant(self._positions[: x.shape[1]], x.dtype)
        return self.dropout(x + positions[: tf.shape(x)[1]], training=bool(training))

    def get_config(self) -> dict[str, Any]:
        max_len, embed_dim = self._positions.shape
        config = {**super().get_config(), "embed_dim": embed_dim, "dropout": self.dropout.rate, "max_len": max_len}
        return config if self._given_dtype is not None else {**config, "dtype": None}
