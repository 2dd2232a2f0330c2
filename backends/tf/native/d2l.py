"""d2l.ai's layer as it is written: "Dive into Deep Learning", in TensorFlow.

Kept as it is, with its difference from the definition: a row without a valid key averages all values,
because its scores are all -1e6, and a softmax of equal scores is uniform. One
thing is repaired: the book divides the scores by a float32 square root whatever they are, which in
float64 is an error (deviation `d2l-tf-refuses-float64`); here the root has their dtype.
(https://d2l.ai/chapter_attention-mechanisms-and-transformers/multihead-attention.html; the book's
code is under the MIT-0 licence.)
"""

from typing import Any

import keras
import tensorflow as tf

FILL = -1e6
"""The score that excluded keys get: a finite number, so a lower score loses to it."""


def masked_softmax(scores: tf.Tensor, valid_lens: tf.Tensor | None) -> tf.Tensor:
    """Return the softmax of scores (N, Lq, Lk) over the keys. Keys j >= valid_lens, (N,) or (N, Lq), are masked.

    >>> masked_softmax(tf.zeros((1, 1, 4)), tf.constant([0])).numpy()  # nothing is allowed: a uniform row
    array([[[0.25, 0.25, 0.25, 0.25]]], dtype=float32)
    """
    if valid_lens is None:
        return tf.nn.softmax(scores, axis=-1)
    shape = scores.shape
    lens = tf.repeat(valid_lens, shape[1]) if len(valid_lens.shape) == 1 else tf.reshape(valid_lens, (-1,))
    rows = tf.reshape(scores, (-1, shape[-1]))
    within = tf.range(shape[-1], dtype=tf.float32)[None, :] < tf.cast(lens[:, None], tf.float32)
    return tf.nn.softmax(tf.reshape(tf.where(within, rows, FILL), shape), axis=-1)


class D2lDotProductAttention(keras.Layer):
    """Scaled dot-product attention over a batch that heads are folded into.

    >>> D2lDotProductAttention(0.0)(tf.ones((1, 2, 3)), tf.ones((1, 4, 3)), tf.ones((1, 4, 5))).shape
    TensorShape([1, 2, 5])
    """

    def __init__(self, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.attention_weights: tf.Tensor | None = None

    def call(
        self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, valid_lens: tf.Tensor | None = None, **kwargs: Any
    ) -> tf.Tensor:
        """(B, Lq, d), (B, Lk, d), (B, Lk, dv) -> (B, Lq, dv)."""
        width = tf.cast(queries.shape[-1], queries.dtype)  # the book casts to tf.float32
        scores = tf.matmul(queries, keys, transpose_b=True) / tf.math.sqrt(width)
        self.attention_weights = masked_softmax(scores, valid_lens)
        return tf.matmul(self.dropout(self.attention_weights, **kwargs), values)


class D2lMultiHeadAttention(keras.Layer):
    """Multi-head attention of d2l.ai: `num_hiddens` wide, masked by valid_lens alone.

    The constructor's first three arguments are the book's. They are unused: the first call decides input widths.

    >>> layer = D2lMultiHeadAttention(100, 100, 100, 100, 5, 0.5)
    >>> layer(tf.ones((2, 4, 100)), tf.ones((2, 6, 100)), tf.ones((2, 6, 100)), tf.constant([3, 2])).shape
    TensorShape([2, 4, 100])
    """

    def __init__(
        self,
        key_size: int,
        query_size: int,
        value_size: int,
        num_hiddens: int,
        num_heads: int,
        dropout: float,
        bias: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.num_hiddens = num_hiddens
        self.attention = D2lDotProductAttention(dropout, dtype=self.dtype_policy)

        def dense(name: str) -> keras.layers.Dense:
            return keras.layers.Dense(num_hiddens, use_bias=bias, name=name, dtype=self.dtype_policy)

        self.W_q, self.W_k, self.W_v, self.W_o = (dense(name) for name in ("W_q", "W_k", "W_v", "W_o"))

    def build(self, queries_shape: Any, keys_shape: Any, values_shape: Any, valid_lens_shape: Any = None) -> None:
        """Make the parameters for inputs of these shapes; Keras calls this before the first call."""
        self.W_q.build(queries_shape)
        self.W_k.build(keys_shape)
        self.W_v.build(values_shape)
        self.W_o.build((None, None, self.num_hiddens))

    def call(
        self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, valid_lens: tf.Tensor | None, **kwargs: Any
    ) -> tf.Tensor:
        """Return (B, Lq, num_hiddens) from (B, Lq, Dq), (B, Lk, Dk), (B, Lk, Dv) and valid_lens (B,) or (B, Lq)."""
        queries = self.transpose_qkv(self.W_q(queries))
        keys = self.transpose_qkv(self.W_k(keys))
        values = self.transpose_qkv(self.W_v(values))
        if valid_lens is not None:
            # On axis 0, copy the first item num_heads times, then the next, and so on.
            valid_lens = tf.repeat(valid_lens, repeats=self.num_heads, axis=0)
        return self.W_o(self.transpose_output(self.attention(queries, keys, values, valid_lens, **kwargs)))

    def transpose_qkv(self, x: tf.Tensor) -> tf.Tensor:
        """Return x (B, L, num_hiddens) as (B * num_heads, L, num_hiddens / num_heads)."""
        x = tf.reshape(x, (x.shape[0], x.shape[1], self.num_heads, -1))
        x = tf.transpose(x, (0, 2, 1, 3))
        return tf.reshape(x, (-1, x.shape[2], x.shape[3]))

    def transpose_output(self, x: tf.Tensor) -> tf.Tensor:
        """Return the inverse of `transpose_qkv`."""
        x = tf.reshape(x, (-1, self.num_heads, x.shape[1], x.shape[2]))
        x = tf.transpose(x, (0, 2, 1, 3))
        return tf.reshape(x, (x.shape[0], x.shape[1], -1))
